package identity_test

import (
	"fmt"
	"time"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

func ExampleResolver_Tenant() {
	key, err := identity.NewHMACKey("HS256", "hs256-1", identity.Secret("test-only-hs256-key-0123456789abc"))
	if err != nil {
		fmt.Println(err)
		return
	}
	keys, err := identity.NewKeys(key)
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := identity.New(identity.Config{
		Issuers: []identity.Issuer{{
			Keys: []identity.KeySource{keys}, Algorithms: []string{"HS256"}, TenantClaim: "tenant_id",
		}},
		Now: func() time.Time { return time.Unix(1_750_000_000, 0) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	const token = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6ImhzMjU2LTEifQ.eyJpc3MiOiJodHRwczovL2lzc3Vlci50ZXN0IiwiYXVkIjoic2VudGluZWwiLCJzdWIiOiJ1MSIsInRlbmFudF9pZCI6InQxIiwianRpIjoiajEiLCJpYXQiOjE3MDAwMDAwMDAsImV4cCI6NDEwMjQ0NDgwMH0.gu6T9wXajobLy1f2Bp8MrKNwN_WH7o-uxqGXmsWfz3U"
	id, err := r.Tenant(identity.Credentials{Authorization: []string{"Bearer " + token}})
	fmt.Println(id.Tenant, id.Subject, err)
	_, err = r.Tenant(identity.Credentials{Authorization: []string{"Bearer " + token + ", Bearer " + token}})
	fmt.Println(err)
	_, err = r.Tenant(identity.Credentials{})
	fmt.Println(err)
	// Output:
	// t1 u1 <nil>
	// invalid credential: Bearer is not followed by exactly one token
	// no credential
}

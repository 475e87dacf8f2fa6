package identity_test

import (
	"fmt"
	"time"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

func ExampleResolver_Tenant() {
	r, err := identity.New(identity.Config{
		Tokens: identity.TokenConfig{
			Keys:        []identity.HMACKey{{Algorithm: "HS256", Secret: identity.Secret("test-only-hs256-key-0123456789abc")}},
			Algorithms:  []string{"HS256"},
			TenantClaim: "tenant_id",
		},
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

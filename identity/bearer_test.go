package identity_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

func TestEA_15_SchemeParsing(t *testing.T) {
	t.Parallel()
	r := newResolver(t)
	token := sign(goodHeader, goodPayload, secret256)
	for _, tt := range []struct {
		name   string
		values []string
		want   error
	}{
		{"as RFC 6750 writes it", []string{"Bearer " + token}, nil},
		{"lower case", []string{"bearer " + token}, nil},
		{"upper case", []string{"BEARER " + token}, nil},
		{"several spaces are one separator", []string{"Bearer  " + token}, nil},
		{"a tab is none", []string{"Bearer\t" + token}, identity.ErrInvalid},
		{"scheme alone", []string{"Bearer"}, identity.ErrInvalid},
		{"scheme and space", []string{"Bearer "}, identity.ErrInvalid},
		{"padding alone", []string{"Bearer ="}, identity.ErrInvalid},
		{"another scheme", []string{"Basic dTpw"}, identity.ErrInvalid},
		{"another scheme with our token", []string{"Token " + token}, identity.ErrInvalid},
		{"more after the token", []string{"Bearer " + token + " extra"}, identity.ErrInvalid},
		{"a parameter", []string{"Bearer " + token + ";x=1"}, identity.ErrInvalid},
		{"a longer scheme", []string{"BearerX " + token}, identity.ErrInvalid},
		{"no scheme", []string{token}, identity.ErrInvalid},
		{"white space before", []string{" Bearer " + token}, identity.ErrInvalid},
		{"a line break after", []string{"Bearer " + token + "\r\n"}, identity.ErrInvalid},
		{"a scheme that folds to Bearer in Unicode", []string{"Bear\u212Ar " + token}, identity.ErrInvalid},
		{"sent and empty", []string{""}, identity.ErrInvalid},
		{"not sent", nil, identity.ErrMissing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			id, err := r.Tenant(identity.Credentials{Authorization: tt.values})
			if !errors.Is(err, tt.want) || err == nil && id.Tenant != "t1" {
				t.Errorf("got %+v, %v; want %v", id, err, tt.want)
			}
		})
	}

	t.Run("an anonymous endpoint does not read it", func(t *testing.T) {
		t.Parallel()
		c := identity.Credentials{Authorization: []string{"Bearer junk"}, ClientAddress: []string{"203.0.113.7"}}
		if id := r.Anonymous(c); id.Tenant != "" || id.Subject != "" || id.Address != "203.0.113.7" {
			t.Errorf("got %+v", id)
		}
	})
}

// TestEA_03_RepeatedAuthorization: Envoy joins repeated headers with a comma, so which credential the upstream would
// believe is unknown. Never the first, never the last, never anonymous.
func TestEA_03_RepeatedAuthorization(t *testing.T) {
	t.Parallel()
	r := newResolver(t)
	one := sign(goodHeader, goodPayload, secret256)
	two := sign(goodHeader, strings.Replace(goodPayload, "t1", "t2", 1), secret256)
	for _, values := range [][]string{
		{"Bearer " + one + ",Bearer " + two},
		{"Bearer " + one + ", Bearer " + one},
		{"Bearer " + one + ", "},
		{"Bearer " + one + ","},
		{"Bearer ," + one},
		{"Bearer, Bearer " + one},
		{",Bearer " + one},
		{"Basic dTpw,Bearer " + one},
		{"Bearer " + one, "Bearer " + two},
		{"Bearer " + one, "Bearer " + one},
		{"Bearer " + one, ""},
	} {
		if id, err := r.Tenant(identity.Credentials{Authorization: values}); !errors.Is(err, identity.ErrInvalid) {
			t.Errorf("%.60q: got %+v, %v; want ErrInvalid", values, id, err)
		}
	}
}

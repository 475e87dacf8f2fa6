package identity_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sentinel-rls/sentinel-rls/identity"
)

// makeCookie signs a cookie value by hand.
func makeCookie(clientID, exp, secret string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("sentinel-anon:v1:" + clientID + ":" + exp))
	return clientID + "." + exp + "." + hex.EncodeToString(mac.Sum(nil))
}

const clientID = "00112233445566778899aabbccddeeff"

func inSeconds(s int64) string { return strconv.FormatInt(now.Unix()+s, 10) }

func cookieHeader(values ...string) identity.Credentials {
	return identity.Credentials{Cookies: values}
}

// TestMintedCookie: what is set is exactly what spec section 7 says, a browser can parse it, and it is valid when it
// comes back, until it has expired.
func TestMintedCookie(t *testing.T) {
	t.Parallel()
	clock := now
	r := newResolver(t, func(c *identity.Config) {
		c.Cookie.TTL = time.Hour
		c.Now = func() time.Time { return clock }
	})
	first := r.Anonymous(identity.Credentials{})
	if first.Cookie != "" {
		t.Errorf("a caller without cookie has client id %q", first.Cookie)
	}
	want := regexp.MustCompile(`^sentinel_anon_id=[0-9a-f]{32}\.1750003600\.[0-9a-f]{64}; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax; Secure$`)
	if !want.MatchString(first.SetCookie) {
		t.Fatalf("Set-Cookie: %s", first.SetCookie)
	}
	set, err := http.ParseSetCookie(first.SetCookie)
	if err != nil {
		t.Fatal(err)
	}
	if got := makeCookie(set.Value[:32], "1750003600", cookieKey); set.Value != got {
		t.Errorf("value %s, want %s", set.Value, got)
	}
	if second := r.Anonymous(identity.Credentials{}); second.SetCookie[:50] == first.SetCookie[:50] {
		t.Error("two callers got one client id")
	}

	clock = now.Add(time.Hour - time.Second)
	id := r.Anonymous(cookieHeader(set.Name + "=" + set.Value))
	if id.Cookie != set.Value[:32] || id.SetCookie != "" {
		t.Errorf("a second before it expires: %+v", id)
	}
	if got, ok := r.Cookie(set.Value); !ok || got != id.Cookie {
		t.Errorf("Cookie: %q, %v", got, ok)
	}
	clock = now.Add(time.Hour)
	if id := r.Anonymous(cookieHeader(set.Name + "=" + set.Value)); id.Cookie != "" || id.SetCookie == "" {
		t.Errorf("expired: %+v", id)
	}
}

func TestInsecureCookie(t *testing.T) {
	t.Parallel()
	r := newResolver(t, func(c *identity.Config) { c.Cookie.Insecure, c.Cookie.Name = true, "a" })
	set := r.Anonymous(identity.Credentials{}).SetCookie
	if strings.Contains(set, "; Secure") || !strings.HasPrefix(set, "a=") || !strings.Contains(set, "HttpOnly; SameSite=Lax") {
		t.Error(set)
	}
}

func TestCK_02_UnusableCookies(t *testing.T) {
	t.Parallel()
	r := newResolver(t)
	good := makeCookie(clientID, inSeconds(60), cookieKey)
	if got, ok := r.Cookie(good); !ok || got != clientID {
		t.Fatalf("the good one: %q, %v", got, ok)
	}
	macOverAnotherName := hmac.New(sha256.New, []byte(cookieKey))
	macOverAnotherName.Write([]byte("other:v1:" + clientID + ":" + inSeconds(60)))
	for name, value := range map[string]string{
		"empty":                          "",
		"last character changed":         good[:len(good)-1] + string("01"[good[len(good)-1]&1^1]),
		"8 kB":                           strings.Repeat("a", 8<<10),
		"dots":                           "..",
		"two parts":                      clientID + "." + inSeconds(60),
		"four parts":                     good + ".",
		"a MAC of 8 bytes":               good[:len(good)-48],
		"a MAC in upper case":            good[:43] + strings.ToUpper(good[43:]),
		"a MAC for another purpose":      clientID + "." + inSeconds(60) + "." + hex.EncodeToString(macOverAnotherName.Sum(nil)),
		"another secret":                 makeCookie(clientID, inSeconds(60), strings.Repeat("x", 32)),
		"a token's secret":               makeCookie(clientID, inSeconds(60), secret256),
		"expired now":                    makeCookie(clientID, inSeconds(0), cookieKey),
		"expired long ago":               makeCookie(clientID, "1", cookieKey),
		"expiry below 0":                 makeCookie(clientID, "-1", cookieKey),
		"expiry with a leading 0":        makeCookie(clientID, "0"+inSeconds(60), cookieKey),
		"expiry with a plus":             makeCookie(clientID, "+"+inSeconds(60), cookieKey),
		"expiry beyond 64 bits":          makeCookie(clientID, "99999999999999999999", cookieKey),
		"expiry no number":               makeCookie(clientID, "never", cookieKey),
		"client id in upper case":        makeCookie(strings.ToUpper(clientID), inSeconds(60), cookieKey),
		"client id of 31 characters":     makeCookie(clientID[1:], inSeconds(60), cookieKey),
		"client id no hex":               makeCookie("g"+clientID[1:], inSeconds(60), cookieKey),
		"client id and expiry confused":  makeCookie(clientID+":1", inSeconds(60), cookieKey),
		"quoted":                         `"` + good + `"`,
		"white space inside":             good[:32] + " " + good[32:],
		"another expiry, the MAC as was": clientID + "." + inSeconds(61) + good[43:],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, ok := r.Cookie(value); ok {
				t.Errorf("%s is valid: %q", value, got)
			}
			id := r.Anonymous(cookieHeader("sentinel_anon_id=" + value))
			if id.Cookie != "" || id.SetCookie == "" {
				t.Errorf("%s: got %+v, want as without cookie", value, id)
			}
		})
	}
}

// TestCK_04_Rotation: the newest secret signs, older ones are accepted until they are dropped, and the client id, which
// is what buckets are kept by, does not change.
func TestCK_04_Rotation(t *testing.T) {
	t.Parallel()
	value := makeCookie(clientID, inSeconds(60), oldCookie)
	both := newResolver(t)
	if got, ok := both.Cookie(value); !ok || got != clientID {
		t.Errorf("while both are listed: %q, %v", got, ok)
	}
	if set := both.Anonymous(identity.Credentials{}).SetCookie; !strings.Contains(set, makeCookie(set[17:49], set[50:60], cookieKey)) {
		t.Errorf("not signed with the newest: %s", set)
	}
	one := newResolver(t, func(c *identity.Config) { c.Cookie.Secrets = c.Cookie.Secrets[:1] })
	if got, ok := one.Cookie(value); ok {
		t.Errorf("after it was dropped: %q", got)
	}
}

func TestCookieHeaders(t *testing.T) {
	t.Parallel()
	r := newResolver(t)
	good := "sentinel_anon_id=" + makeCookie(clientID, inSeconds(60), cookieKey)
	const bad = "sentinel_anon_id=x"
	for _, tt := range []struct {
		name    string
		headers []string
		found   bool
	}{
		{"alone", []string{good}, true},
		{"among others", []string{"a=1; " + good + "; b=2"}, true},
		{"without spaces", []string{"a=1;" + good + ";b=2"}, true},
		{"in the second header", []string{"a=1", good}, true},
		{"headers that Envoy joined", []string{"a=1," + good + ",b=2"}, true},
		{"after a bad one", []string{bad + "; " + good}, true},
		{"after three bad ones", []string{bad, bad, bad, good}, true},
		{"after more bad ones than are looked at", []string{bad, bad, bad, bad, good}, false},
		{"another case", []string{strings.ToUpper(good[:16]) + good[16:]}, false},
		{"a longer name", []string{"x" + good}, false},
		{"the name alone", []string{"sentinel_anon_id"}, false},
		{"nothing", nil, false},
		{"empty", []string{""}, false},
		{"separators", []string{";;;,,,;= ;=;"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			id := r.Anonymous(cookieHeader(tt.headers...))
			if (id.Cookie == clientID) != tt.found || (id.SetCookie == "") != tt.found {
				t.Errorf("got %+v, want found %v", id, tt.found)
			}
		})
	}
}

// TestCookieProperty: a cookie is valid iff a listed secret signed it and it has not expired, and no other text is.
func TestCookieProperty(t *testing.T) {
	t.Parallel()
	r := newResolver(t)
	rapid.Check(t, func(rt *rapid.T) {
		id := hex.EncodeToString(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(rt, "id"))
		left := rapid.Int64Range(-1000, 1000).Draw(rt, "seconds left")
		secret := rapid.SampledFrom([]string{cookieKey, oldCookie, secret256}).Draw(rt, "secret")
		value := makeCookie(id, inSeconds(left), secret)
		got, ok := r.Cookie(value)
		if want := left > 0 && secret != secret256; ok != want || ok && got != id {
			rt.Fatalf("%s: got %q, %v; want %v", value, got, ok, want)
		}
		at := rapid.IntRange(0, len(value)-1).Draw(rt, "at")
		bit := byte(1) << rapid.IntRange(0, 7).Draw(rt, "bit")
		changed := []byte(value)
		changed[at] ^= bit
		if got, ok := r.Cookie(string(changed)); ok {
			rt.Fatalf("%s changed at %d: valid, %q", value, at, got)
		}
	})
}

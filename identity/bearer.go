package identity

import "strings"

// MaxTokenBytes is the longest token that is looked at; a longer one is refused before anything is decoded.
const MaxTokenBytes = 8 << 10

// bearer returns the token of the one Authorization value: Bearer in any case, spaces, one token68 (RFC 9110 11.4).
//
// Envoy joins repeated headers with a comma, so a value with one may be two credentials, of which the upstream might
// believe the other; token68 has no comma, so every such value is refused.
func bearer(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", ErrMissing
	case 1:
	default:
		return "", errManyValues
	}
	const scheme = "bearer"
	value := values[0]
	if len(value) > MaxTokenBytes+len(scheme)+16 {
		return "", errOversized
	}
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", errScheme
	}
	rest := value[len(scheme):]
	token := strings.TrimLeft(rest, " ")
	if token == rest || !isToken68(token) {
		return "", errCredentials
	}
	return token, nil
}

// isToken68 reports whether s is a token68: one or more of its characters, then any number of =.
func isToken68(s string) bool {
	body := strings.TrimRight(s, "=")
	for i := range len(body) {
		if !token68[body[i]] {
			return false
		}
	}
	return body != ""
}

// token68 are the characters of a token68 but =. Every request's token is looked through with it.
var token68 = func() (set [256]bool) {
	for _, c := range []byte("-._~+/0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") {
		set[c] = true
	}
	return set
}()

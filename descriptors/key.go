package descriptors

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
)

// The revisions of the key format. Each has its own way to make a hash of an identity, so a revision never means two.
const (
	tenantRevision = "v1"
	otherRevision  = "v2" // cookie, client_ip, global
	userRevision   = "v3"
)

var prefixGrammar = regexp.MustCompile(`^[A-Za-z0-9._:-]{0,128}$`)

// keyParts are the parts of a limit's keys that no request changes. The braces around the first hash are Redis
// Cluster's hash tag: every bucket of one identity lives in one slot.
type keyParts struct {
	head    string // [prefix]sentinel:v1:
	tail    string // :<endpoint>:<policy_version>[:<limit name>]
	unknown string // the whole key of the bucket for a missing identity
	global  string // scope global: the whole key
}

func newKeyParts(prefix string, p *Policy, l *Limit) keyParts {
	revision := otherRevision
	switch l.Scope {
	case ScopeTenant:
		revision = tenantRevision
	case ScopeUser:
		revision = userRevision
	}
	k := keyParts{
		head: prefix + "sentinel:" + revision + ":",
		tail: ":" + p.Endpoint + ":" + strconv.FormatInt(p.Version, 10),
	}
	if l.Name != "" {
		k.tail += ":" + l.Name
	}
	k.unknown = k.head + "{unknown}" + k.tail
	if p.Tenant != "" && l.Scope == ScopeUser {
		var tenant hash // its numbers, perhaps its algorithm, are this tenant's own, and so must the bucket be
		k.unknown = k.head + "{" + string(tenant.once("", p.Tenant).hex[:]) + "}:{unknown}" + k.tail
	}
	var domain hash
	k.global = k.of(domain.once("global:", p.Domain))
	return k
}

func (k *keyParts) of(h *hash) string { return k.head + "{" + string(h.hex[:]) + "}" + k.tail }

// Key returns the store key of the bucket that l keeps for s. False: the limit does not apply (scope cookie without a
// cookie). Any other missing identity gives the limit's {unknown} bucket; a user without tenant is a missing identity. A
// limit of a tenant's replacement has an {unknown} bucket of the tenant's.
func (l *Limit) Key(s *Subject) (string, bool) {
	k := &l.key
	switch l.Scope {
	case ScopeGlobal:
		return k.global, true
	case ScopeTenant:
		if s.Tenant != "" {
			return k.of(s.tenant()), true
		}
	case ScopeUser:
		if s.Tenant != "" && s.User != "" {
			tenant, user := s.tenant(), s.user()
			return k.head + "{" + string(tenant.hex[:]) + "}:" + string(user.hex[:]) + k.tail, true
		}
	case ScopeClientIP:
		if s.ClientIP != "" {
			return k.of(s.clientIP()), true
		}
	case ScopeCookie:
		if s.Cookie != "" {
			return k.of(s.cookie()), true
		}
		return "", false
	}
	return k.unknown, true
}

// PrimaryHash returns the hash, in hex, that stands for the caller in the keys of its primary identity: the tenant, or
// the cookie and without one the client address. Empty: unknown.
func (s *Subject) PrimaryHash(mode IdentityMode) string {
	var h *hash
	switch {
	case mode == TenantJWT && s.Tenant != "":
		h = s.tenant()
	case mode == Anonymous && s.Cookie != "":
		h = s.cookie()
	case mode == Anonymous && s.ClientIP != "":
		h = s.clientIP()
	default:
		return ""
	}
	return string(h.hex[:])
}

// hash is a SHA-256 in hex, computed when it is first asked for.
type hash struct {
	known bool
	hex   [2 * sha256.Size]byte
}

// once hashes kind + identity, unless that was done before.
func (h *hash) once(kind, identity string) *hash {
	if h.known {
		return h
	}
	var room [256]byte
	return h.set(append(append(room[:0], kind...), identity...))
}

func (h *hash) set(text []byte) *hash {
	sum := sha256.Sum256(text)
	hex.Encode(h.hex[:], sum[:])
	h.known = true
	return h
}

func (s *Subject) tenant() *hash   { return s.hashes.tenant.once("", s.Tenant) }
func (s *Subject) cookie() *hash   { return s.hashes.cookie.once("anon:cookie:", s.Cookie) }
func (s *Subject) clientIP() *hash { return s.hashes.clientIP.once("anon:ip:", s.ClientIP) }

// user hashes tenant and user with the tenant's length before it, so that no two pairs give the same text.
func (s *Subject) user() *hash {
	h := &s.hashes.user
	if h.known {
		return h
	}
	var room [256]byte
	text := append(room[:0], "user:"...)
	text = strconv.AppendInt(text, int64(len(s.Tenant)), 10)
	text = append(text, ':')
	text = append(text, s.Tenant...)
	text = append(text, ':')
	return h.set(append(text, s.User...))
}

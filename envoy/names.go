package envoy

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// Names are the names under which Envoy and sentinel hand things to each other. Zero fields take the default named at each.
type Names struct {
	// MetadataNamespace is the namespace of the route metadata that holds the endpoint id; sentinel.
	MetadataNamespace string
	// EndpointID is the endpoint id's key there, and among the context extensions; endpoint_id.
	EndpointID string
	// ClientAddressHeader is the request header that Envoy fills with the client's address; x-sentinel-client-ip.
	ClientAddressHeader string

	TenantHeader  string // to the upstream; x-sentinel-tenant
	SubjectHeader string // to the upstream; x-sentinel-subject
	ReasonHeader  string // to the client, on refusals; x-sentinel-reason

	Metadata MetadataNames
}

// MetadataNames are the keys of a CheckResponse's dynamic metadata.
type MetadataNames struct {
	Tenant     string // tenant
	Subject    string // subject
	Plan       string // plan
	EndpointID string // endpoint_id
	DecisionID string // decision_id
	Reason     string // reason
	Policy     string // policy
}

func (n Names) withDefaults() Names {
	return Names{
		MetadataNamespace:   cmp.Or(n.MetadataNamespace, "sentinel"),
		EndpointID:          cmp.Or(n.EndpointID, "endpoint_id"),
		ClientAddressHeader: cmp.Or(strings.ToLower(n.ClientAddressHeader), "x-sentinel-client-ip"),
		TenantHeader:        cmp.Or(strings.ToLower(n.TenantHeader), "x-sentinel-tenant"),
		SubjectHeader:       cmp.Or(strings.ToLower(n.SubjectHeader), "x-sentinel-subject"),
		ReasonHeader:        cmp.Or(strings.ToLower(n.ReasonHeader), "x-sentinel-reason"),
		Metadata: MetadataNames{
			Tenant:     cmp.Or(n.Metadata.Tenant, "tenant"),
			Subject:    cmp.Or(n.Metadata.Subject, "subject"),
			Plan:       cmp.Or(n.Metadata.Plan, "plan"),
			EndpointID: cmp.Or(n.Metadata.EndpointID, "endpoint_id"),
			DecisionID: cmp.Or(n.Metadata.DecisionID, "decision_id"),
			Reason:     cmp.Or(n.Metadata.Reason, "reason"),
			Policy:     cmp.Or(n.Metadata.Policy, "policy"),
		},
	}
}

// check reports every name that cannot work. Names have their defaults by now.
func (n *Names) check() error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf("envoy: "+format, args...)) }
	for _, name := range []string{n.ClientAddressHeader, n.TenantHeader, n.SubjectHeader, n.ReasonHeader} {
		if err := checkHeaderName(name); err != nil {
			refuse("%w", err)
		}
	}
	distinct := func(what string, names ...string) {
		seen := map[string]bool{}
		for _, name := range names {
			if seen[name] {
				refuse("two %s are named %q", what, name)
			}
			seen[name] = true
		}
	}
	distinct("request headers", n.ClientAddressHeader, n.TenantHeader, n.SubjectHeader,
		headerAuthorization, headerCookie, headerForwardedFor, headerContentType)
	distinct("response headers", n.ReasonHeader, headerContentType, headerRetryAfter, headerWWWAuthenticate, headerSetCookie,
		headerGRPCStatus, headerRateLimitLimit, headerRateLimitRemaining, headerRateLimitReset, headerEnvoyRateLimited)
	m := &n.Metadata
	distinct("dynamic metadata keys", m.Tenant, m.Subject, m.Plan, m.EndpointID, m.DecisionID, m.Reason, m.Policy)
	return errors.Join(problems...)
}

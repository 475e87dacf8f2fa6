package xds

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	configv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// filesOf returns each resource as a file of the configuration language, so that it is read and judged as one. Lines and
// paths in errors are those of the text that json.MarshalIndent makes of it.
func filesOf(resources []*anypb.Any) ([]descriptors.File, error) {
	files := make([]descriptors.File, 0, len(resources))
	var problems []error
	for i, resource := range resources {
		config := new(configv3.RateLimitConfig)
		if resource.GetTypeUrl() != TypeURL {
			problems = append(problems, fmt.Errorf("resource %d: its type is %s, not %s", i, resource.GetTypeUrl(), TypeURL))
			continue
		}
		if err := resource.UnmarshalTo(config); err != nil {
			problems = append(problems, fmt.Errorf("resource %d: %w", i, err))
			continue
		}
		text, err := fileOf(config)
		if err != nil {
			problems = append(problems, fmt.Errorf("resource %q: %w", config.GetName(), err))
			continue
		}
		files = append(files, descriptors.File{Name: "xds:" + printable(config.GetName()), Data: text})
	}
	return files, errors.Join(problems...)
}

// printable keeps a resource's name on one line.
func printable(name string) string {
	quoted := strconv.Quote(name)
	return quoted[1 : len(quoted)-1]
}

type fileConfig struct {
	Domain      string            `json:"domain"`
	Descriptors []*fileDescriptor `json:"descriptors"`
}

type fileDescriptor struct {
	Key            string            `json:"key"`
	Value          string            `json:"value,omitempty"`
	RateLimit      *fileLimit        `json:"rate_limit,omitempty"`
	ShadowMode     bool              `json:"shadow_mode,omitempty"`
	QuotaMode      bool              `json:"quota_mode,omitempty"`
	DetailedMetric bool              `json:"detailed_metric,omitempty"`
	Metadata       map[string]any    `json:"metadata,omitempty"`
	Descriptors    []*fileDescriptor `json:"descriptors,omitempty"`
}

type fileLimit struct {
	Unit            string        `json:"unit,omitempty"`
	RequestsPerUnit *uint32       `json:"requests_per_unit,omitempty"`
	Unlimited       bool          `json:"unlimited,omitempty"`
	Name            string        `json:"name,omitempty"`
	Replaces        []fileReplace `json:"replaces,omitempty"`
}

type fileReplace struct {
	Name string `json:"name"`
}

// fileOf writes a resource as text. The library's own JSON has other names, and is not the same from run to run.
func fileOf(c *configv3.RateLimitConfig) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	all, err := descriptorsOf(c.GetDescriptors(), 0)
	if err != nil {
		return nil, err
	}
	err = encoder.Encode(fileConfig{Domain: c.GetDomain(), Descriptors: all})
	return text.Bytes(), err
}

// maxDepth bounds nesting, as the reader of files does.
const maxDepth = 64

func descriptorsOf(all []*configv3.RateLimitDescriptor, depth int) ([]*fileDescriptor, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d levels of descriptors", maxDepth)
	}
	out := make([]*fileDescriptor, len(all))
	for i, d := range all {
		below, err := descriptorsOf(d.GetDescriptors(), depth+1)
		if err != nil {
			return nil, err
		}
		out[i] = &fileDescriptor{
			Key: d.GetKey(), Value: d.GetValue(), RateLimit: limitOf(d.GetRateLimit()),
			ShadowMode: d.GetShadowMode(), DetailedMetric: d.GetDetailedMetric(), Descriptors: below,
		}
		out[i].readNewer(d)
	}
	return out, nil
}

func limitOf(p *configv3.RateLimitPolicy) *fileLimit {
	if p == nil {
		return nil
	}
	l := &fileLimit{Unlimited: p.GetUnlimited(), Name: p.GetName()}
	if p.GetUnit() != configv3.RateLimitUnit_UNKNOWN || !p.GetUnlimited() {
		l.Unit = unitName(p.GetUnit())
	}
	if !p.GetUnlimited() {
		l.RequestsPerUnit = new(p.GetRequestsPerUnit())
	}
	for _, r := range p.GetReplaces() {
		l.Replaces = append(l.Replaces, fileReplace{r.GetName()})
	}
	return l
}

// week is newer than the generated types.
const week configv3.RateLimitUnit = 7

// unitName returns the unit's name; for a number that is none the number, which the reader refuses.
func unitName(u configv3.RateLimitUnit) string {
	if u == week {
		return "week"
	}
	return strings.ToLower(u.String())
}

// The numbers of fields that are newer than the generated types.
const (
	quotaModeField = 7 // bool quota_mode
	metadataField  = 8 // google.protobuf.Struct metadata
)

// readNewer takes from a descriptor what the generated types do not know. What is none of these fields, or cannot be read
// as one, is ignored, as unknown fields are.
func (f *fileDescriptor) readNewer(d *configv3.RateLimitDescriptor) {
	var metadata structpb.Struct
	for b := []byte(d.ProtoReflect().GetUnknown()); len(b) > 0; {
		num, typ, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return
		}
		switch {
		case num == quotaModeField && typ == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(b[tag:])
			f.QuotaMode = v != 0
		case num == metadataField && typ == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(b[tag:])
			if (proto.UnmarshalOptions{Merge: true}).Unmarshal(v, &metadata) == nil && len(metadata.ProtoReflect().GetUnknown()) == 0 {
				f.Metadata = metadata.AsMap()
			}
		}
		size := protowire.ConsumeFieldValue(num, typ, b[tag:])
		if size < 0 {
			return
		}
		b = b[tag+size:]
	}
}

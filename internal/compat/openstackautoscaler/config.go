// Package openstackautoscaler is the compatibility mode of the OpenStack cluster autoscaler
// (github.com/Chathuru/kubernetes-cluster-autoscaler). It converts the tool's conf.yml to a ToNodeGroup and a cloud
// configuration.
package openstackautoscaler

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/internal/compat"
)

// Tool is the name of the replaced tool in the command.
const Tool = "openstack-autoscaler"

// DefaultFile is the tool's configuration file, in the working directory.
const DefaultFile = "conf.yml"

// The values of CloudType. All except OpenStack are plugins.
const (
	OpenStack = "OpenStack"
	GCP       = "GCP"
	AWS       = "AWS"
	Libvirt   = "libvirt"
	Other     = "Other"
)

// CloudTypes returns all values of CloudType.
func CloudTypes() []string { return []string{OpenStack, GCP, AWS, Libvirt, Other} }

// Config is the tool's configuration as the user wrote it.
type Config struct {
	CloudType       string      `yaml:"CloudType"`
	AuthOptions     AuthOptions `yaml:"AuthOptions"`
	WorkerImageName string      `yaml:"WorkerImageName"`
	// CoolDownTime is in seconds.
	CoolDownTime *int `yaml:"CoolDownTime"`
	// MinNodeCount and MaxNodeCount count all nodes of the cluster, including the control plane.
	MinNodeCount       *int     `yaml:"MinNodeCount"`
	MaxNodeCount       *int     `yaml:"MaxNodeCount"`
	PassConfigToPlugin any      `yaml:"PassConfigToPlugin"`
	Network            Network  `yaml:"Network"`
	OpenStackFlavours  Flavours `yaml:"OpenStackFlavours"`

	// Warnings report ignored and changed settings.
	Warnings []string `yaml:"-"`
}

// AuthOptions contains the credentials. CloudType determines which fields are used.
type AuthOptions struct {
	IdentityEndpoint string `yaml:"IdentityEndpoint"`
	Username         string `yaml:"Username"`
	Password         string `yaml:"Password"`
	TenantID         string `yaml:"TenantID"`
	DomainName       string `yaml:"DomainName"`

	ProjectName  string `yaml:"ProjectName"`
	ClientSecret string `yaml:"ClientSecret"`
	ClientID     string `yaml:"ClientId"`
	AWSRegion    string `yaml:"AWSRegion"`
	AuthFile     string `yaml:"AuthFile"`
}

// Network is the network of the servers.
type Network struct {
	SecurityGroupName string `yaml:"SecurityGroupName"`
	NetworkUUID       string `yaml:"NetworkUUID"`
}

// Flavours are the flavours for new servers, in order of preference.
type Flavours struct {
	DefaultFlavour string    `yaml:"DefaultFlavour"`
	Flavours       []Flavour `yaml:"Flavours"`
	// Reserved contains the resources that system and kubelet reserve on every node, as quantities by name. The tool did not have
	// it. The default is what kubeadm's kubelets reserve.
	Reserved map[string]string `yaml:"Reserved"`
}

// Flavour describes a flavour. Memory is in MiB.
type Flavour struct {
	Name   string `yaml:"Name"`
	VCPU   int    `yaml:"VCPU"`
	Memory int    `yaml:"Memory"`
	// Allocatable contains a node's allocatable resources, as quantities by name. The tool did not have it. It overrides Reserved.
	Allocatable map[string]string `yaml:"Allocatable"`
}

const (
	// maxFileBytes limits the size of the file.
	maxFileBytes = 1 << 20
	// maxNodes is the maximum size limit of a ToNodeGroup. maxCoolDownSeconds is the maximum cooldown of one year.
	maxNodes           = math.MaxInt32
	maxCoolDownSeconds = 365 * 24 * 60 * 60
)

// Load reads the file at path.
func Load(path string) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("the autoscaler's configuration: %w", err)
	}
	c, err := Parse(raw)
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Parse parses the content of the file. The error contains all faults.
func Parse(raw []byte) (Config, error) {
	var c Config
	if len(raw) > maxFileBytes {
		return c, fmt.Errorf("%d bytes: want at most %d", len(raw), maxFileBytes)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(raw, &document); err != nil {
		return c, err
	}
	if len(document.Content) == 0 || document.Content[0].Kind != yaml.MappingNode {
		return c, errors.New("want keys with values at the top, such as CloudType: OpenStack")
	}
	var checker schemaChecker
	checker.checkNode(document.Content[0], reflect.TypeFor[Config](), "")
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	if err := decoder.Decode(&c); err != nil {
		kinds, ok := errors.AsType[*yaml.TypeError](err)
		if !ok {
			return c, err
		}
		for _, text := range kinds.Errors {
			if len(checker.wrongFields) == 0 || !strings.Contains(text, "cannot unmarshal") { // that error names no field
				checker.errs = append(checker.errs, errors.New(text))
			}
		}
	}
	if err := checkNoSecondDocument(decoder); err != nil {
		return c, err
	}
	if c.PassConfigToPlugin != nil {
		c.addWarning("PassConfigToPlugin: has no effect, as in the autoscaler; ignored")
	}
	return c, errors.Join(append(checker.errs, slices.DeleteFunc(c.validate(), checker.isReported)...)...)
}

// checkNoSecondDocument returns an error if another non-empty YAML document follows.
func checkNoSecondDocument(rest *yaml.Decoder) error {
	for {
		var next yaml.Node
		err := rest.Decode(&next)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(next.Content) > 0 && next.Content[0].Tag != "!!null" {
			return fmt.Errorf("line %d: a second YAML document: want one document with all keys", next.Content[0].Line)
		}
	}
}

func (c *Config) addWarning(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

// schemaChecker collects the differences between a YAML document and a type: unknown keys and values of the wrong kind.
type schemaChecker struct {
	errs        []error
	wrongFields []string // fields with values of the wrong kind
}

// checkNode checks a part of the document. name is its path, with a dot at the end.
func (m *schemaChecker) checkNode(n *yaml.Node, t reflect.Type, name string) {
	field := strings.TrimSuffix(name, ".")
	switch {
	case n.Kind == yaml.AliasNode:
		m.checkNode(n.Alias, t, name)
	case n.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice:
		for i, item := range n.Content {
			m.checkNode(item, t.Elem(), fmt.Sprintf("%s[%d].", field, i))
		}
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Struct:
		m.checkKeys(n, t, name)
	case n.Decode(reflect.New(t).Interface()) != nil:
		m.wrongFields = append(m.wrongFields, field)
		m.errs = append(m.errs, fmt.Errorf("line %d: %s: %s: want %s", n.Line, field, describeWrongValue(n, t), describeType(t)))
	}
}

func (m *schemaChecker) checkKeys(n *yaml.Node, t reflect.Type, name string) {
	fields := map[string]reflect.Type{}
	var known []string
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("yaml"); key != "" && key != "-" {
			fields[key] = t.Field(i).Type
			known = append(known, key)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if field, ok := fields[key.Value]; ok {
			m.checkNode(n.Content[i+1], field, name+key.Value+".")
			continue
		}
		text := fmt.Sprintf("line %d: %s%s: unknown key", key.Line, name, key.Value)
		if like := compat.FindClosestName(key.Value, known); like != "" {
			text += "; did you mean " + name + like + "?"
		}
		m.errs = append(m.errs, errors.New(text))
	}
}

// isReported reports whether an error is about a field, or a part of a field, that was already reported as unreadable.
func (m *schemaChecker) isReported(err error) bool {
	field, _, _ := strings.Cut(err.Error(), ": ")
	return slices.ContainsFunc(m.wrongFields, func(wrong string) bool {
		return field == wrong || strings.HasPrefix(field, wrong+".") || strings.HasPrefix(field, wrong+"[")
	})
}

// describeWrongValue describes a value of the wrong kind. It shows the text only if a number is wanted, because other values may
// be secret.
func describeWrongValue(n *yaml.Node, t reflect.Type) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return "keys with values"
	case describeType(t) == wholeNumber:
		return fmt.Sprintf("%q", n.Value)
	}
	return "a single value"
}

const wholeNumber = "a whole number"

// describeType returns the name of a type's values in messages.
func describeType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return describeType(t.Elem())
	case reflect.Int:
		return wholeNumber
	case reflect.Slice:
		return "a list"
	case reflect.Struct:
		return "keys with values"
	}
	return "text"
}

// placeholder matches the placeholder values in the tool's example.
var placeholder = regexp.MustCompile(`^<.*>$`)

// validate checks what the tool checked at the start, and what it noticed only when it needed a machine.
func (c *Config) validate() []error {
	var errs []error
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %v: want %s", field, value, want))
		}
	}
	required := func(field, value, why string) {
		check(value != "" && !placeholder.MatchString(value), field, fmt.Sprintf("%q", value), "a value: "+why)
	}
	check(slices.Contains(CloudTypes(), c.CloudType), "CloudType", fmt.Sprintf("%q", c.CloudType), "one of "+strings.Join(CloudTypes(), ", "))
	within := func(field string, value *int, least, most int, what string) {
		check(value != nil && *value >= least && *value <= most, field, formatInt(value), fmt.Sprintf("%d to %d %s", least, most, what))
	}
	within("MinNodeCount", c.MinNodeCount, 0, maxNodes, "nodes, including the control plane")
	within("MaxNodeCount", c.MaxNodeCount, 1, maxNodes, "nodes, including the control plane")
	if c.MinNodeCount != nil && c.MaxNodeCount != nil {
		check(*c.MinNodeCount <= *c.MaxNodeCount, "MinNodeCount", *c.MinNodeCount, fmt.Sprintf("at most MaxNodeCount (%d)", *c.MaxNodeCount))
	}
	if c.CoolDownTime != nil {
		within("CoolDownTime", c.CoolDownTime, 0, maxCoolDownSeconds, "seconds")
	}
	a := &c.AuthOptions
	switch c.CloudType {
	case OpenStack:
		required("AuthOptions.IdentityEndpoint", a.IdentityEndpoint, "the URL of Keystone")
		if u, err := url.Parse(a.IdentityEndpoint); a.IdentityEndpoint != "" {
			check(err == nil && u.Hostname() != "" && (u.Scheme == "https" || u.Scheme == "http"), "AuthOptions.IdentityEndpoint",
				fmt.Sprintf("%q", a.IdentityEndpoint), "a URL, such as https://keystone.example.com:5000/v3")
		}
		required("AuthOptions.Username", a.Username, "the user")
		required("AuthOptions.Password", a.Password, "the user's password")
		required("AuthOptions.TenantID", a.TenantID, "the ID of the project")
		required("AuthOptions.DomainName", a.DomainName, "the domain of the user")
		required("WorkerImageName", c.WorkerImageName, "the image of the workers")
		required("Network.NetworkUUID", c.Network.NetworkUUID, "the ID of the network")
		required("Network.SecurityGroupName", c.Network.SecurityGroupName, "the security group")
		errs = append(errs, c.OpenStackFlavours.validate()...)
	case GCP:
		required("AuthOptions.ProjectName", a.ProjectName, "the project, for "+GCP)
	case AWS:
		required("AuthOptions.AWSRegion", a.AWSRegion, "the region, for "+AWS)
	}
	return errs
}

func formatInt(n *int) string {
	if n == nil {
		return "is missing"
	}
	return fmt.Sprint(*n)
}

func (f *Flavours) validate() []error {
	var errs []error
	if len(f.Flavours) == 0 && f.DefaultFlavour == "" {
		return []error{errors.New("OpenStackFlavours.Flavours: is empty: want at least one flavour")}
	}
	_, errs = parseQuantities("OpenStackFlavours.Reserved", f.Reserved)
	seen := map[string]bool{}
	for i, flavour := range f.Flavours {
		field := fmt.Sprintf("OpenStackFlavours.Flavours[%d].", i)
		switch {
		case flavour.Name == "":
			errs = append(errs, fmt.Errorf("%sName: %q: want the name of a flavour", field, flavour.Name))
		case seen[flavour.Name]:
			errs = append(errs, fmt.Errorf("%sName: %q: is a duplicate", field, flavour.Name))
		}
		seen[flavour.Name] = true
		if flavour.VCPU < 1 {
			errs = append(errs, fmt.Errorf("%sVCPU: %d: want 1 or more", field, flavour.VCPU))
		}
		if flavour.Memory < 1 {
			errs = append(errs, fmt.Errorf("%sMemory: %d: want 1 or more MiB", field, flavour.Memory))
		}
		_, wrong := parseQuantities(field+"Allocatable", flavour.Allocatable)
		errs = append(errs, wrong...)
	}
	return errs
}

// parseQuantities parses amounts by resource name. It returns nil for an empty map.
func parseQuantities(field string, given map[string]string) (list corev1.ResourceList, errs []error) {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		amount, err := resource.ParseQuantity(given[name])
		if err != nil || amount.Sign() < 0 {
			errs = append(errs, fmt.Errorf("%s.%s: %q: want 0 or more, such as 500m or 1Gi", field, name, given[name]))
			continue
		}
		if list == nil {
			list = corev1.ResourceList{}
		}
		list[corev1.ResourceName(name)] = amount
	}
	return list, errs
}

// Package openstackautoscaler is the personality of the OpenStack cluster autoscaler
// (github.com/Chathuru/kubernetes-cluster-autoscaler): its conf.yml in, a NodeGroup and the configuration of a cloud out.
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

// Tool is the name of what is stood in for, as the command has it.
const Tool = "openstack-autoscaler"

// DefaultFile is where the tool looked for its configuration: in the working directory.
const DefaultFile = "conf.yml"

// The values of CloudType. All but OpenStack were plugins.
const (
	OpenStack = "OpenStack"
	GCP       = "GCP"
	AWS       = "AWS"
	Libvirt   = "libvirt"
	Other     = "Other"
)

// CloudTypes lists them.
func CloudTypes() []string { return []string{OpenStack, GCP, AWS, Libvirt, Other} }

// Config is the tool's configuration, as its users gave it.
type Config struct {
	CloudType       string      `yaml:"CloudType"`
	AuthOptions     AuthOptions `yaml:"AuthOptions"`
	WorkerImageName string      `yaml:"WorkerImageName"`
	// CoolDownTime is in seconds.
	CoolDownTime *int `yaml:"CoolDownTime"`
	// MinNodeCount and MaxNodeCount are of the whole cluster, the control plane included.
	MinNodeCount       *int     `yaml:"MinNodeCount"`
	MaxNodeCount       *int     `yaml:"MaxNodeCount"`
	PassConfigToPlugin any      `yaml:"PassConfigToPlugin"`
	Network            Network  `yaml:"Network"`
	OpenStackFlavours  Flavours `yaml:"OpenStackFlavours"`

	// Warnings are what was passed over or is done otherwise than it was asked for.
	Warnings []string `yaml:"-"`
}

// AuthOptions are how a cloud is signed in to. Which of them count depends on CloudType.
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

// Network is what servers are attached to.
type Network struct {
	SecurityGroupName string `yaml:"SecurityGroupName"`
	NetworkUUID       string `yaml:"NetworkUUID"`
}

// Flavours are those that servers are made with, the preferred one first.
type Flavours struct {
	DefaultFlavour string    `yaml:"DefaultFlavour"`
	Flavours       []Flavour `yaml:"Flavours"`
	// Reserved is what the nodes' system and kubelet keep of every flavour, as quantities by name. The tool did not have it; without
	// it, it is what kubeadm's kubelets keep.
	Reserved map[string]string `yaml:"Reserved"`
}

// Flavour is what the tool was told of a flavour. Memory is in MiB.
type Flavour struct {
	Name   string `yaml:"Name"`
	VCPU   int    `yaml:"VCPU"`
	Memory int    `yaml:"Memory"`
	// Allocatable is what pods may take of a node, as quantities by name. The tool did not have it; it counts before Reserved.
	Allocatable map[string]string `yaml:"Allocatable"`
}

const (
	// mostFile is the size of the largest file that is read, in bytes.
	mostFile = 1 << 20
	// mostNodes is the largest bound that a NodeGroup can have, and mostCoolDown the longest cooldown, in seconds: a year.
	mostNodes    = math.MaxInt32
	mostCoolDown = 365 * 24 * 60 * 60
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

// Parse reads what the file holds. The error names everything that is wrong.
func Parse(raw []byte) (Config, error) {
	var c Config
	if len(raw) > mostFile {
		return c, fmt.Errorf("%d bytes: want %d at most", len(raw), mostFile)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(raw, &document); err != nil {
		return c, err
	}
	if len(document.Content) == 0 || document.Content[0].Kind != yaml.MappingNode {
		return c, errors.New("want keys with values at the top, such as CloudType: OpenStack")
	}
	var look misfits
	look.at(document.Content[0], reflect.TypeFor[Config](), "")
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	if err := decoder.Decode(&c); err != nil {
		kinds, ok := errors.AsType[*yaml.TypeError](err)
		if !ok {
			return c, err
		}
		for _, text := range kinds.Errors {
			if len(look.wrong) == 0 || !strings.Contains(text, "cannot unmarshal") { // which names no field
				look.errs = append(look.errs, errors.New(text))
			}
		}
	}
	if err := alone(decoder); err != nil {
		return c, err
	}
	if c.PassConfigToPlugin != nil {
		c.warn("PassConfigToPlugin: the autoscaler read it and did nothing with it; it is passed over")
	}
	return c, errors.Join(append(look.errs, slices.DeleteFunc(c.validate(), look.said)...)...)
}

// alone checks that no document with anything in it follows.
func alone(rest *yaml.Decoder) error {
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
			return fmt.Errorf("line %d: a second document of YAML: want one, with all keys in it", next.Content[0].Line)
		}
	}
}

func (c *Config) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

// misfits are what of a document has no place in a type: keys that it has no field for, and values of another kind.
type misfits struct {
	errs  []error
	wrong []string // the fields with such values
}

// at looks at a part of the document, whose name ends with a dot.
func (m *misfits) at(n *yaml.Node, t reflect.Type, name string) {
	field := strings.TrimSuffix(name, ".")
	switch {
	case n.Kind == yaml.AliasNode:
		m.at(n.Alias, t, name)
	case n.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice:
		for i, item := range n.Content {
			m.at(item, t.Elem(), fmt.Sprintf("%s[%d].", field, i))
		}
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Struct:
		m.atKeys(n, t, name)
	case n.Decode(reflect.New(t).Interface()) != nil:
		m.wrong = append(m.wrong, field)
		m.errs = append(m.errs, fmt.Errorf("line %d: %s: %s: want %s", n.Line, field, given(n, t), kind(t)))
	}
}

func (m *misfits) atKeys(n *yaml.Node, t reflect.Type, name string) {
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
			m.at(n.Content[i+1], field, name+key.Value+".")
			continue
		}
		text := fmt.Sprintf("line %d: %s%s: is no key that is known", key.Line, name, key.Value)
		if like := compat.Closest(key.Value, known); like != "" {
			text += "; meant " + name + like + "?"
		}
		m.errs = append(m.errs, errors.New(text))
	}
}

// said reports an error about a field, or a part of one, whose value could not be read.
func (m *misfits) said(err error) bool {
	field, _, _ := strings.Cut(err.Error(), ": ")
	return slices.ContainsFunc(m.wrong, func(wrong string) bool {
		return field == wrong || strings.HasPrefix(field, wrong+".") || strings.HasPrefix(field, wrong+"[")
	})
}

// given is a value of the wrong kind. Only where a number is wanted can it hold no secret.
func given(n *yaml.Node, t reflect.Type) string {
	switch {
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.MappingNode:
		return "keys with values"
	case kind(t) == number:
		return fmt.Sprintf("%q", n.Value)
	}
	return "a single value"
}

const number = "a whole number"

// kind is what values of a type are called.
func kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return kind(t.Elem())
	case reflect.Int:
		return number
	case reflect.Slice:
		return "a list"
	case reflect.Struct:
		return "keys with values"
	}
	return "text"
}

// placeholder is what the tool's example has where a value belongs.
var placeholder = regexp.MustCompile(`^<.*>$`)

// validate checks what the tool checked, and what it found out only when a machine was needed.
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
		check(value != nil && *value >= least && *value <= most, field, shown(value), fmt.Sprintf("%d to %d %s", least, most, what))
	}
	within("MinNodeCount", c.MinNodeCount, 0, mostNodes, "nodes, the control plane included")
	within("MaxNodeCount", c.MaxNodeCount, 1, mostNodes, "nodes, the control plane included")
	if c.MinNodeCount != nil && c.MaxNodeCount != nil {
		check(*c.MinNodeCount <= *c.MaxNodeCount, "MinNodeCount", *c.MinNodeCount, fmt.Sprintf("at most MaxNodeCount, which is %d", *c.MaxNodeCount))
	}
	if c.CoolDownTime != nil {
		within("CoolDownTime", c.CoolDownTime, 0, mostCoolDown, "seconds")
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

func shown(n *int) string {
	if n == nil {
		return "is missing"
	}
	return fmt.Sprint(*n)
}

func (f *Flavours) validate() []error {
	var errs []error
	if len(f.Flavours) == 0 && f.DefaultFlavour == "" {
		return []error{errors.New("OpenStackFlavours.Flavours: is empty: want a flavour at the least")}
	}
	_, errs = quantities("OpenStackFlavours.Reserved", f.Reserved)
	seen := map[string]bool{}
	for i, one := range f.Flavours {
		field := fmt.Sprintf("OpenStackFlavours.Flavours[%d].", i)
		switch {
		case one.Name == "":
			errs = append(errs, fmt.Errorf("%sName: %q: want the name of a flavour", field, one.Name))
		case seen[one.Name]:
			errs = append(errs, fmt.Errorf("%sName: %q: is there twice", field, one.Name))
		}
		seen[one.Name] = true
		if one.VCPU < 1 {
			errs = append(errs, fmt.Errorf("%sVCPU: %d: want 1 or more", field, one.VCPU))
		}
		if one.Memory < 1 {
			errs = append(errs, fmt.Errorf("%sMemory: %d: want 1 or more MiB", field, one.Memory))
		}
		_, wrong := quantities(field+"Allocatable", one.Allocatable)
		errs = append(errs, wrong...)
	}
	return errs
}

// quantities reads amounts by the names of their resources; nil for none.
func quantities(field string, given map[string]string) (list corev1.ResourceList, errs []error) {
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

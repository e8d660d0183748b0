package openstack

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Config says which OpenStack a [Provider] speaks to, as whom, and what its groups are. It is read from YAML or JSON.
//
// Who asks comes from Auth, or from the entry Cloud of a clouds.yaml, or, with neither, from the environment (OS_CLOUD,
// or OS_AUTH_URL and what goes with it).
type Config struct {
	// Cloud is the name of an entry of clouds.yaml.
	Cloud string `json:"cloud,omitempty"`
	// CloudsFile is the clouds.yaml; empty is $OS_CLIENT_CONFIG_FILE, or the places where OpenStack's own client looks:
	// the working directory, ~/.config/openstack and /etc/openstack. A secure.yaml beside it is read too.
	CloudsFile string `json:"cloudsFile,omitempty"`
	// Auth takes the place of a clouds.yaml.
	Auth *Auth `json:"auth,omitempty"`
	// Region is where the servers are. It may stay empty where there is one only.
	Region string `json:"region,omitempty"`
	// Interface is which of a service's endpoints is used: public, internal or admin; empty is what clouds.yaml says, or
	// public.
	Interface string `json:"interface,omitempty"`
	// Endpoints take the place of the catalog's, by the type of the service: compute, image, network.
	Endpoints map[string]string `json:"endpoints,omitempty"`
	// CAFile holds the certificates, in PEM, that the services are trusted by; empty is what clouds.yaml says, or the
	// system's.
	CAFile string `json:"caFile,omitempty"`

	// ClusterName tells this cluster's servers from those of others in the project.
	ClusterName string `json:"clusterName"`
	// FormerClusterNames are names by which the cluster's servers may still be marked, such as one that other clusters of the
	// project had too. A server of such a name is the cluster's when it has a Node, as one that a group has adopted.
	FormerClusterNames []string      `json:"formerClusterNames,omitempty"`
	Groups             []GroupConfig `json:"groups,omitempty"`

	// Join is how machines find the cluster whose user data has .Join.
	Join JoinConfig `json:"join,omitzero"`

	// ParallelCreates is how many servers are asked for at once, 1 to 100; 0 is 40.
	ParallelCreates int `json:"parallelCreates,omitempty"`
	// RequestTimeout limits each try of a request, to its last byte. 1s to 5m; 0 is 60s, as Nova may take long to answer a
	// create.
	RequestTimeout cloud.Duration `json:"requestTimeout,omitempty"`
}

// JoinConfig is how machines find their cluster.
type JoinConfig struct {
	// Server is the API server's host and port as the machines reach it; empty is what kubeadm has published in the
	// ConfigMap kube-public/cluster-info.
	Server string `json:"server,omitempty"`
	// TTL is how long a machine has to join. 1m to 24h; 0 is 30m.
	TTL cloud.Duration `json:"ttl,omitempty"`
}

// Auth is what Keystone is told, in the terms of clouds.yaml. It is a user with a password, or an application credential,
// which brings its project with it.
type Auth struct {
	// URL is Keystone's, such as https://keystone.example.com:5000/v3.
	URL string `json:"url"`

	// Username, with UserDomainName or UserDomainID, or UserID by itself, is the user.
	Username       string `json:"username,omitempty"`
	UserID         string `json:"userID,omitempty"`
	UserDomainName string `json:"userDomainName,omitempty"`
	UserDomainID   string `json:"userDomainID,omitempty"`
	// Password is the user's.
	Password string `json:"password,omitempty"`
	// PasswordFile is read at the start, so that the password can be a mounted Secret.
	PasswordFile string `json:"passwordFile,omitempty"`

	// ProjectName, with ProjectDomainName or ProjectDomainID, or ProjectID by itself, is where the servers are.
	ProjectName       string `json:"projectName,omitempty"`
	ProjectID         string `json:"projectID,omitempty"`
	ProjectDomainName string `json:"projectDomainName,omitempty"`
	ProjectDomainID   string `json:"projectDomainID,omitempty"`

	// ApplicationCredentialID, or ApplicationCredentialName with the user, takes the place of user, password and project.
	ApplicationCredentialID   string `json:"applicationCredentialID,omitempty"`
	ApplicationCredentialName string `json:"applicationCredentialName,omitempty"`
	// ApplicationCredentialSecret is what it was given when it was made; ApplicationCredentialSecretFile is a file with it.
	ApplicationCredentialSecret     string `json:"applicationCredentialSecret,omitempty"`
	ApplicationCredentialSecretFile string `json:"applicationCredentialSecretFile,omitempty"`
}

// GroupConfig is a kind of server that a group has. Everything but flavors is named by name or by ID; a name that
// several things have is an error that lists them.
type GroupConfig struct {
	// Name is what NodeGroups call it in spec.cloud.group.
	Name string `json:"name"`
	// Flavors are the names or IDs of those that may be used, the preferred one first.
	Flavors []string `json:"flavors,omitempty"`
	// FlavorSelection takes the place of Flavors.
	FlavorSelection *FlavorSelection `json:"flavorSelection,omitempty"`
	// Image is what the servers boot.
	Image Image `json:"image"`
	// BootVolume has the servers boot from a volume of their own, which goes with them.
	BootVolume *BootVolume `json:"bootVolume,omitempty"`
	// Networks are those that the servers are attached to, by ports that Nova makes; at least one, or else Ports.
	Networks []string `json:"networks,omitempty"`
	// Ports take the place of Networks: each server gets such ports, which are deleted with it.
	Ports []Port `json:"ports,omitempty"`
	// SecurityGroups are those of the servers; none leaves it to Nova.
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// ServerGroup is one of Nova's, whose policy, such as anti-affinity, the servers are placed by.
	ServerGroup string `json:"serverGroup,omitempty"`
	// KeyPair is the key by which people log in.
	KeyPair string `json:"keyPair,omitempty"`
	// AvailabilityZones are filled evenly; none leaves it to Nova. A group whose pods ask for zones should have one. The one
	// in which hosts are that have no zone of their own, often nova, is no bound: Nova places its servers on any host.
	AvailabilityZones []string `json:"availabilityZones,omitempty"`
	// Metadata is the servers', beside what Slipway itself writes there.
	Metadata map[string]string `json:"metadata,omitempty"`
	// ConfigDrive gives the servers their user data on a disk, where the metadata service cannot be reached.
	ConfigDrive bool `json:"configDrive,omitempty"`
	// UserData is a Go template over [Machine], UserDataFile a file with one.
	UserData     string `json:"userData,omitempty"`
	UserDataFile string `json:"userDataFile,omitempty"`
	// NamePrefix begins the servers' names, which a dash and six random characters end; empty is the group's name.
	NamePrefix string `json:"namePrefix,omitempty"`
	// AdoptNamePrefix takes servers without the metadata of any cluster into the group, by how their name begins: those
	// that another tool has made.
	AdoptNamePrefix string `json:"adoptNamePrefix,omitempty"`
	// Nodes declares what the flavors do not say of the Nodes. What it says of capacity counts before them.
	Nodes cloud.Shape `json:"nodes,omitzero"`
	// Resources say which extra specs of flavors count devices.
	Resources []ExtraSpecResource `json:"resources,omitempty"`
}

// Port is a port of a server, where Nova's own do not do.
type Port struct {
	// Network is the name or ID of the network.
	Network string `json:"network"`
	// Subnet is the name or ID of the network's subnet that the address is of; empty leaves it to Neutron.
	Subnet string `json:"subnet,omitempty"`
	// AllowedAddressPairs are further addresses that the server may send from, such as those of pods or virtual IPs.
	AllowedAddressPairs []AddressPair `json:"allowedAddressPairs,omitempty"`
	// VNICType is Neutron's binding:vnic_type, such as normal or direct; empty is normal.
	VNICType string `json:"vnicType,omitempty"`
	// PortSecurity turns the checks of addresses, and security groups, on or off; by default it is as the network says.
	PortSecurity *bool `json:"portSecurity,omitempty"`
}

// AddressPair is an address that a server may send from.
type AddressPair struct {
	// IPAddress is an address or a network, such as 10.244.0.0/16.
	IPAddress string `json:"ipAddress"`
	// MACAddress is empty for the port's own.
	MACAddress string `json:"macAddress,omitempty"`
}

// FlavorSelection takes all flavors that are within its bounds, the smallest first: by vCPUs, memory, disk and name. A
// bound of 0 is none.
type FlavorSelection struct {
	// MinVCPUs and MaxVCPUs bound the virtual CPUs.
	MinVCPUs int `json:"minVCPUs,omitempty"`
	MaxVCPUs int `json:"maxVCPUs,omitempty"`
	// MinMemory and MaxMemory bound the memory.
	MinMemory *resource.Quantity `json:"minMemory,omitempty"`
	MaxMemory *resource.Quantity `json:"maxMemory,omitempty"`
	// Name is a regular expression that the whole name has to match.
	Name string `json:"name,omitempty"`
	// ExtraSpecs are those that a flavor has to have, with these values.
	ExtraSpecs map[string]string `json:"extraSpecs,omitempty"`
}

// Image is one of Glance's: by exactly one of the three. Of several with the tag the newest is taken.
type Image struct {
	// Name, ID and Tag are what Glance knows it by.
	Name string `json:"name,omitempty"`
	ID   string `json:"id,omitempty"`
	Tag  string `json:"tag,omitempty"`
	// Visibility is public, private, shared or community; empty is any but community, whose images anybody can make.
	Visibility string `json:"visibility,omitempty"`
}

func (i Image) String() string {
	switch {
	case i.ID != "":
		return "ID " + i.ID
	case i.Tag != "":
		return "tag " + i.Tag
	}
	return "name " + i.Name
}

// BootVolume is the disk of a server that boots from Cinder.
type BootVolume struct {
	// SizeGiB is at least 1.
	SizeGiB int `json:"sizeGiB"`
	// Type is the volume's; empty is Cinder's default.
	Type string `json:"type,omitempty"`
}

// ExtraSpecResource says that an extra spec counts a resource of the Node: as a number (resources:VGPU is 1), or as
// aliases with numbers (pci_passthrough:alias is a100:2,nic:1), which are added up.
type ExtraSpecResource struct {
	// ExtraSpec is the extra spec's key.
	ExtraSpec string `json:"extraSpec"`
	// Resource is what Nodes call it, such as nvidia.com/gpu.
	Resource string `json:"resource"`
}

const (
	defaultRequestTimeout  = time.Minute
	minRequestTimeout      = time.Second
	maxRequestTimeout      = 5 * time.Minute
	defaultParallelCreates = 40
	maxParallelCreates     = 100
)

func (c *Config) requestTimeout() time.Duration {
	if c.RequestTimeout == 0 {
		return defaultRequestTimeout
	}
	return time.Duration(c.RequestTimeout)
}

func (c *Config) parallelCreates() int {
	if c.ParallelCreates == 0 {
		return defaultParallelCreates
	}
	return c.ParallelCreates
}

var (
	// tagValue is what we write into metadata and names; Nova would take more.
	tagValue = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	// hostPrefix leaves room for a dash and six characters in a host name of 63.
	hostPrefix = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,53}[a-z0-9])?$`)
	// metadataKey is Nova's rule for them.
	metadataKey = regexp.MustCompile(`^[a-zA-Z0-9_:. -]{1,255}$`)
)

// maxMetadata is the longest value of Nova's metadata, in bytes.
const maxMetadata = 255

const clusterNames = "a name of up to 63 letters, digits, . _ and -, that no other cluster in the project has"

// CheckClusterName refuses a name that a configuration's ClusterName cannot be, for those who have it from elsewhere.
func CheckClusterName(name string) error {
	if !tagValue.MatchString(name) {
		return fmt.Errorf("%q: want %s", name, clusterNames)
	}
	return nil
}

// Validate reports everything that is wrong, each with field, value and what is allowed.
func (c *Config) Validate() error {
	var v problems
	v.check(tagValue.MatchString(c.ClusterName), "clusterName", c.ClusterName, clusterNames)
	for i, name := range c.FormerClusterNames {
		v.check(tagValue.MatchString(name) && name != c.ClusterName, fmt.Sprintf("formerClusterNames[%d]", i), name,
			"a name of up to 63 letters, digits, . _ and -, other than clusterName")
	}
	v.check(c.Auth == nil || c.Cloud == "" && c.CloudsFile == "", "auth", "given", "either auth, or cloud and cloudsFile")
	v.check(slices.Contains([]string{"", "public", "internal", "admin"}, c.Interface), "interface", c.Interface, "public, internal or admin")
	for _, service := range slices.Sorted(maps.Keys(c.Endpoints)) {
		field := "endpoints." + service
		v.check(slices.Contains([]string{"compute", "image", "network"}, service), field, c.Endpoints[service],
			"one of compute, image and network")
		v.checkURL(field, c.Endpoints[service])
	}
	if t := c.requestTimeout(); t < minRequestTimeout || t > maxRequestTimeout {
		v.add("requestTimeout", t, minRequestTimeout.String()+" to "+maxRequestTimeout.String())
	}
	if n := c.parallelCreates(); n < 1 || n > maxParallelCreates {
		v.add("parallelCreates", n, fmt.Sprintf("1 to %d", maxParallelCreates))
	}
	if c.Auth != nil {
		c.Auth.validate(&v)
	}
	names := map[string]bool{}
	for i := range c.Groups {
		g := &c.Groups[i]
		v.field = fmt.Sprintf("groups[%d].", i)
		v.check(tagValue.MatchString(g.Name), "name", g.Name, "a name of up to 63 letters, digits, . _ and -")
		v.check(!names[g.Name], "name", g.Name, "a name that no other group has")
		names[g.Name] = true
		g.validate(&v)
	}
	return errors.Join(v.found...)
}

func (a *Auth) validate(v *problems) {
	v.field = "auth."
	defer func() { v.field = "" }()
	v.checkURL("url", a.URL)
	if a.ApplicationCredentialID != "" || a.ApplicationCredentialName != "" {
		v.check((a.ApplicationCredentialSecret == "") != (a.ApplicationCredentialSecretFile == ""), "applicationCredentialSecret", "",
			"exactly one of applicationCredentialSecret and applicationCredentialSecretFile")
		v.check(a.Password == "" && a.PasswordFile == "", "password", "given", "none beside an application credential")
		v.check(a.ProjectName == "" && a.ProjectID == "", "projectID", a.ProjectID+a.ProjectName,
			"none beside an application credential, which is of one project")
		v.check(a.ApplicationCredentialID != "" || a.UserID != "" || a.Username != "", "username", "",
			"the user, since applicationCredentialName is only one of that user's")
		return
	}
	v.check((a.Username == "") != (a.UserID == ""), "username", a.Username, "exactly one of username and userID, or an application credential")
	v.check((a.Password == "") != (a.PasswordFile == ""), "password", "", "exactly one of password and passwordFile")
	v.check((a.ProjectName == "") != (a.ProjectID == ""), "projectID", a.ProjectID, "exactly one of projectID and projectName")
	v.check(a.Username == "" || a.UserDomainName != "" || a.UserDomainID != "", "userDomainName", "",
		"the domain of the user, often Default, since username is only unique in one")
	v.check(a.ProjectName == "" || a.ProjectDomainName != "" || a.ProjectDomainID != "", "projectDomainName", "",
		"the domain of the project, often Default, since projectName is only unique in one")
}

func (g *GroupConfig) validate(v *problems) {
	v.check((len(g.Flavors) > 0) != (g.FlavorSelection != nil), "flavors", strings.Join(g.Flavors, ","),
		"the names of flavors, or else flavorSelection")
	for i, f := range g.Flavors {
		v.check(f != "" && !slices.Contains(g.Flavors[:i], f), fmt.Sprintf("flavors[%d]", i), f, "a flavor that is not there yet")
	}
	if s := g.FlavorSelection; s != nil {
		_, err := regexp.Compile(s.Name)
		v.check(err == nil, "flavorSelection.name", s.Name, "a regular expression")
		v.check(s.MaxVCPUs == 0 || s.MaxVCPUs >= s.MinVCPUs, "flavorSelection.maxVCPUs", fmt.Sprint(s.MaxVCPUs), "minVCPUs or more")
		v.check(s.MaxMemory == nil || s.MinMemory == nil || s.MaxMemory.Cmp(*s.MinMemory) >= 0, "flavorSelection.maxMemory",
			fmt.Sprint(s.MaxMemory), "minMemory or more")
	}
	given := 0
	for _, by := range []string{g.Image.Name, g.Image.ID, g.Image.Tag} {
		if by != "" {
			given++
		}
	}
	v.check(given == 1, "image", g.Image.String(), "exactly one of name, id and tag")
	v.check(g.Image.ID == "" || uuid.MatchString(g.Image.ID), "image.id", g.Image.ID, "the ID of an image, a UUID")
	v.check(slices.Contains([]string{"", "public", "private", "shared", "community"}, g.Image.Visibility), "image.visibility",
		g.Image.Visibility, "public, private, shared or community")
	v.check(g.BootVolume == nil || g.BootVolume.SizeGiB > 0, "bootVolume.sizeGiB", "0 or less", "1 or more")
	v.check((len(g.Networks) > 0) != (len(g.Ports) > 0), "networks", strings.Join(g.Networks, ","),
		"one network at the least, by name or ID, or else ports")
	for i := range g.Ports {
		g.Ports[i].validate(v, fmt.Sprintf("ports[%d].", i))
	}
	for field, list := range map[string][]string{
		"networks": g.Networks, "securityGroups": g.SecurityGroups, "availabilityZones": g.AvailabilityZones,
	} {
		for i, name := range list {
			v.check(name != "" && !slices.Contains(list[:i], name), fmt.Sprintf("%s[%d]", field, i), name, "one that is not there yet")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(g.Metadata)) {
		v.check(metadataKey.MatchString(key) && key != ClusterKey && key != GroupKey, "metadata", key,
			"a key of up to 255 letters, digits, space and _ : . -, other than "+ClusterKey+" and "+GroupKey)
		v.check(len(g.Metadata[key]) <= maxMetadata, "metadata."+key, g.Metadata[key], fmt.Sprintf("up to %d bytes", maxMetadata))
	}
	v.check(g.UserData == "" || g.UserDataFile == "", "userData", "given", "either userData or userDataFile")
	prefix := g.namePrefix()
	v.check(hostPrefix.MatchString(prefix), "namePrefix", prefix,
		"up to 55 small letters, digits and -, a letter first, since it begins host names")
	v.check(g.Nodes.Cost >= 0, "nodes.cost", fmt.Sprint(g.Nodes.Cost), "0 or more")
	for _, name := range cloud.Negative(g.Nodes.Reserved) {
		v.check(false, "nodes.reserved."+name, "less than 0", "0 or more")
	}
	for i, r := range g.Resources {
		v.check(r.ExtraSpec != "" && strings.Contains(r.Resource, "/"), fmt.Sprintf("resources[%d]", i), r.Resource,
			"extraSpec, and a resource with a domain, such as nvidia.com/gpu")
	}
}

// vnicTypes are those of Neutron.
var vnicTypes = []string{
	"", "normal", "direct", "direct-physical", "macvtap", "baremetal", "virtio-forwarder", "vdpa", "accelerator-direct", "remote-managed",
}

func (p *Port) validate(v *problems, field string) {
	v.check(p.Network != "", field+"network", p.Network, "the name or ID of a network")
	v.check(slices.Contains(vnicTypes, p.VNICType), field+"vnicType", p.VNICType, "one of "+strings.Join(vnicTypes[1:], ", "))
	for i, pair := range p.AllowedAddressPairs {
		_, err := netip.ParseAddr(pair.IPAddress)
		_, prefixErr := netip.ParsePrefix(pair.IPAddress)
		v.check(err == nil || prefixErr == nil, fmt.Sprintf("%sallowedAddressPairs[%d].ipAddress", field, i), pair.IPAddress,
			"an address or a network, such as 10.244.0.0/16")
		_, err = net.ParseMAC(pair.MACAddress)
		v.check(pair.MACAddress == "" || err == nil, fmt.Sprintf("%sallowedAddressPairs[%d].macAddress", field, i), pair.MACAddress, "a MAC address")
	}
	v.check(p.PortSecurity == nil || *p.PortSecurity || len(p.AllowedAddressPairs) == 0, field+"allowedAddressPairs", "given",
		"none where portSecurity is off, as any address may be sent from then")
}

func (g *GroupConfig) namePrefix() string {
	if g.NamePrefix == "" {
		return g.Name
	}
	return g.NamePrefix
}

// template gives the text of the user data's template; empty is none.
func (g *GroupConfig) template() (string, error) {
	if g.UserDataFile == "" {
		return g.UserData, nil
	}
	raw, err := os.ReadFile(g.UserDataFile)
	if err != nil {
		return "", fmt.Errorf("userDataFile: %w", err)
	}
	return string(raw), nil
}

// problems gathers what is wrong with a configuration.
type problems struct {
	field string // that those that follow are below
	found []error
}

func (v *problems) check(ok bool, field, value, want string) {
	if !ok {
		v.add(field, fmt.Sprintf("%q", value), want)
	}
}

func (v *problems) checkURL(field, value string) {
	u, err := url.Parse(value)
	v.check(err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil && u.RawQuery == "" &&
		u.Fragment == "", field, value, "an https URL without query")
}

func (v *problems) add(field string, value any, want string) {
	v.found = append(v.found, fmt.Errorf("openstack %s%s: %v: want %s", v.field, field, value, want))
}

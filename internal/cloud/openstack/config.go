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

// Config configures a [Provider]: the OpenStack cloud, the credential and the groups. It is read from YAML or JSON.
//
// The credential is Auth, or the entry Cloud of a clouds.yaml. If both are empty, it comes from the environment
// (OS_CLOUD, or OS_AUTH_URL and its related variables).
type Config struct {
	// Cloud is the name of an entry of clouds.yaml.
	Cloud string `json:"cloud,omitempty"`
	// CloudsFile is the path of clouds.yaml. It defaults to $OS_CLIENT_CONFIG_FILE, then to the paths of the OpenStack
	// client: the working directory, ~/.config/openstack and /etc/openstack. A secure.yaml next to it is read too.
	CloudsFile string `json:"cloudsFile,omitempty"`
	// Auth replaces clouds.yaml.
	Auth *Auth `json:"auth,omitempty"`
	// Region is the region of the servers. It may be empty if the cloud has a single region.
	Region string `json:"region,omitempty"`
	// Interface selects the endpoints: public, internal or admin. It defaults to the value in clouds.yaml, then to
	// public.
	Interface string `json:"interface,omitempty"`
	// Endpoints replaces endpoints of the catalog, by service type: compute, image, network.
	Endpoints map[string]string `json:"endpoints,omitempty"`
	// CAFile has the certificate authorities of the services, in PEM. It defaults to the value in clouds.yaml, then to
	// the system's.
	CAFile string `json:"caFile,omitempty"`

	// ClusterName distinguishes this cluster's servers from other clusters' in the project.
	ClusterName string `json:"clusterName"`
	// FormerClusterNames are older names in the metadata of the cluster's servers. Other clusters of the project may
	// have used them too. A server with such a name belongs to the cluster only if it has a Node, like an adopted
	// server.
	FormerClusterNames []string      `json:"formerClusterNames,omitempty"`
	Groups             []GroupConfig `json:"groups,omitempty"`

	// Join configures .Join in the user data template.
	Join JoinConfig `json:"join,omitzero"`

	// ParallelCreates limits concurrent create requests, 1 to 100. 0 is 40.
	ParallelCreates int `json:"parallelCreates,omitempty"`
	// RequestTimeout limits each attempt of a request, including its body, 1s to 5m. 0 is 60s, because Nova can be slow
	// to create a server.
	RequestTimeout cloud.Duration `json:"requestTimeout,omitempty"`
}

// JoinConfig configures how new servers join the cluster.
type JoinConfig struct {
	// Server is the host and port of the API server as the servers reach it. It defaults to the ConfigMap
	// kube-public/cluster-info, which kubeadm writes.
	Server string `json:"server,omitempty"`
	// TTL is how long a server may take to join, 1m to 24h. 0 is 30m.
	TTL cloud.Duration `json:"ttl,omitempty"`
}

// Auth is a credential for Keystone, with the fields of clouds.yaml. It is a user with a password, or an application
// credential, which includes the project.
type Auth struct {
	// URL is the URL of Keystone, such as https://keystone.example.com:5000/v3.
	URL string `json:"url"`

	// The user: UserID, or Username with UserDomainName or UserDomainID.
	Username       string `json:"username,omitempty"`
	UserID         string `json:"userID,omitempty"`
	UserDomainName string `json:"userDomainName,omitempty"`
	UserDomainID   string `json:"userDomainID,omitempty"`
	// Password is the user's password.
	Password string `json:"password,omitempty"`
	// PasswordFile is read at the start. It can be a mounted Secret.
	PasswordFile string `json:"passwordFile,omitempty"`

	// The project of the servers: ProjectID, or ProjectName with ProjectDomainName or ProjectDomainID.
	ProjectName       string `json:"projectName,omitempty"`
	ProjectID         string `json:"projectID,omitempty"`
	ProjectDomainName string `json:"projectDomainName,omitempty"`
	ProjectDomainID   string `json:"projectDomainID,omitempty"`

	// ApplicationCredentialID, or ApplicationCredentialName with the user, replaces user, password and project.
	ApplicationCredentialID   string `json:"applicationCredentialID,omitempty"`
	ApplicationCredentialName string `json:"applicationCredentialName,omitempty"`
	// ApplicationCredentialSecret is the secret of the application credential. ApplicationCredentialSecretFile is a
	// file with it.
	ApplicationCredentialSecret     string `json:"applicationCredentialSecret,omitempty"`
	ApplicationCredentialSecretFile string `json:"applicationCredentialSecretFile,omitempty"`
}

// GroupConfig describes the servers of a group. Resources are named by name or ID. A name that matches more than one
// resource is an error that lists them.
type GroupConfig struct {
	// Name is the value of NodeGroup spec.cloud.group.
	Name string `json:"name"`
	// Flavors lists the names or IDs of the allowed flavors, the preferred one first.
	Flavors []string `json:"flavors,omitempty"`
	// FlavorSelection replaces Flavors.
	FlavorSelection *FlavorSelection `json:"flavorSelection,omitempty"`
	// Image is the boot image.
	Image Image `json:"image"`
	// BootVolume makes the servers boot from a volume, which is deleted with the server.
	BootVolume *BootVolume `json:"bootVolume,omitempty"`
	// Networks lists the networks of the servers. Nova creates the ports. At least one, or else Ports.
	Networks []string `json:"networks,omitempty"`
	// Ports replaces Networks: each server gets these ports, which are deleted with it.
	Ports []Port `json:"ports,omitempty"`
	// SecurityGroups lists the security groups of the servers. Empty is Nova's default.
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// ServerGroup is a Nova server group with a placement policy, such as anti-affinity.
	ServerGroup string `json:"serverGroup,omitempty"`
	// KeyPair is the SSH key pair for administrators.
	KeyPair string `json:"keyPair,omitempty"`
	// AvailabilityZones are filled evenly. Empty lets Nova choose. A group with pods that select zones should have one
	// zone. The default zone for hosts without a zone, often named nova, does not restrict: Nova places its servers on
	// any host.
	AvailabilityZones []string `json:"availabilityZones,omitempty"`
	// Metadata is added to the servers' metadata, next to the keys of Slipway.
	Metadata map[string]string `json:"metadata,omitempty"`
	// ConfigDrive provides the user data on a disk, for servers that cannot reach the metadata service.
	ConfigDrive bool `json:"configDrive,omitempty"`
	// UserData is a Go template with the fields of [Machine]. UserDataFile is a file with one.
	UserData     string `json:"userData,omitempty"`
	UserDataFile string `json:"userDataFile,omitempty"`
	// NamePrefix starts the server names, followed by a dash and six random characters. It defaults to the group's
	// name.
	NamePrefix string `json:"namePrefix,omitempty"`
	// AdoptNamePrefix adds servers to the group that have this name prefix and no cluster in their metadata. It is for
	// servers that another tool created.
	AdoptNamePrefix string `json:"adoptNamePrefix,omitempty"`
	// Nodes describes the Nodes beyond the flavor. Its capacity takes precedence over the flavor's.
	Nodes cloud.NodeShape `json:"nodes,omitzero"`
	// Resources maps extra specs of flavors to device resources.
	Resources []ExtraSpecResource `json:"resources,omitempty"`
}

// Port configures a port, if a port that Nova creates is not sufficient.
type Port struct {
	// Network is the name or ID of the network.
	Network string `json:"network"`
	// Subnet is the name or ID of the address's subnet. Empty lets Neutron choose.
	Subnet string `json:"subnet,omitempty"`
	// AllowedAddressPairs lists further source addresses of the server, such as pod addresses or virtual IPs.
	AllowedAddressPairs []AddressPair `json:"allowedAddressPairs,omitempty"`
	// VNICType is Neutron's binding:vnic_type, such as normal or direct. Empty is normal.
	VNICType string `json:"vnicType,omitempty"`
	// PortSecurity enables or disables address checks and security groups. It defaults to the network's setting.
	PortSecurity *bool `json:"portSecurity,omitempty"`
}

// AddressPair is a source address that a server may use.
type AddressPair struct {
	// IPAddress is an address or a network, such as 10.244.0.0/16.
	IPAddress string `json:"ipAddress"`
	// MACAddress defaults to the port's.
	MACAddress string `json:"macAddress,omitempty"`
}

// FlavorSelection selects all flavors within its limits, the smallest first: by vCPUs, memory, disk and name. A limit
// of 0 is unlimited.
type FlavorSelection struct {
	// MinVCPUs and MaxVCPUs limit the virtual CPUs.
	MinVCPUs int `json:"minVCPUs,omitempty"`
	MaxVCPUs int `json:"maxVCPUs,omitempty"`
	// MinMemory and MaxMemory limit the memory.
	MinMemory *resource.Quantity `json:"minMemory,omitempty"`
	MaxMemory *resource.Quantity `json:"maxMemory,omitempty"`
	// Name is a regular expression for the whole name.
	Name string `json:"name,omitempty"`
	// ExtraSpecs lists extra specs that a flavor must have, with their values.
	ExtraSpecs map[string]string `json:"extraSpecs,omitempty"`
}

// Image selects a Glance image by exactly one of name, ID and tag. If several images have the tag, the newest is used.
type Image struct {
	// Name, ID or Tag identifies the image in Glance.
	Name string `json:"name,omitempty"`
	ID   string `json:"id,omitempty"`
	Tag  string `json:"tag,omitempty"`
	// Visibility is public, private, shared or community. Empty is any except community, because every user can create
	// community images.
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

// BootVolume configures the boot disk of a server in Cinder.
type BootVolume struct {
	// SizeGiB is at least 1.
	SizeGiB int `json:"sizeGiB"`
	// Type is the volume type. Empty is Cinder's default.
	Type string `json:"type,omitempty"`
}

// ExtraSpecResource maps an extra spec to a resource of the Node. The value is a number (resources:VGPU is 1), or a
// list of aliases with numbers, which are added (pci_passthrough:alias is a100:2,nic:1).
type ExtraSpecResource struct {
	// ExtraSpec is the extra spec's key.
	ExtraSpec string `json:"extraSpec"`
	// Resource is the resource name of Nodes, such as nvidia.com/gpu.
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
	// namePattern is the allowed form of values in metadata and names. Nova allows more.
	namePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	// hostPrefixPattern leaves room for a dash and six characters in a host name of 63 characters.
	hostPrefixPattern = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,53}[a-z0-9])?$`)
	// metadataKeyPattern is Nova's rule for metadata keys.
	metadataKeyPattern = regexp.MustCompile(`^[a-zA-Z0-9_:. -]{1,255}$`)
)

// maxMetadataLength is the maximum length of a metadata value in Nova, in bytes.
const maxMetadataLength = 255

const clusterNameFormat = "a name of up to 63 letters, digits, . _ and -, that no other cluster in the project has"

// CheckClusterName returns an error if the cluster name is not valid for [Config].
func CheckClusterName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%q: want %s", name, clusterNameFormat)
	}
	return nil
}

// Validate returns all errors, each with field, value and allowed values.
func (c *Config) Validate() error {
	var v configErrors
	v.check(namePattern.MatchString(c.ClusterName), "clusterName", c.ClusterName, clusterNameFormat)
	for i, name := range c.FormerClusterNames {
		v.check(namePattern.MatchString(name) && name != c.ClusterName, fmt.Sprintf("formerClusterNames[%d]", i), name,
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
		v.fieldPrefix = fmt.Sprintf("groups[%d].", i)
		v.check(namePattern.MatchString(g.Name), "name", g.Name, "a name of up to 63 letters, digits, . _ and -")
		v.check(!names[g.Name], "name", g.Name, "a name that no other group has")
		names[g.Name] = true
		g.validate(&v)
	}
	return errors.Join(v.errs...)
}

func (a *Auth) validate(v *configErrors) {
	v.fieldPrefix = "auth."
	defer func() { v.fieldPrefix = "" }()
	v.checkURL("url", a.URL)
	if a.ApplicationCredentialID != "" || a.ApplicationCredentialName != "" {
		v.check((a.ApplicationCredentialSecret == "") != (a.ApplicationCredentialSecretFile == ""), "applicationCredentialSecret", "",
			"exactly one of applicationCredentialSecret and applicationCredentialSecretFile")
		v.check(a.Password == "" && a.PasswordFile == "", "password", "given", "none with an application credential")
		v.check(a.ProjectName == "" && a.ProjectID == "", "projectID", a.ProjectID+a.ProjectName,
			"none with an application credential, which includes a project")
		v.check(a.ApplicationCredentialID != "" || a.UserID != "" || a.Username != "", "username", "",
			"the user, because applicationCredentialName is unique only per user")
		return
	}
	v.check((a.Username == "") != (a.UserID == ""), "username", a.Username, "exactly one of username and userID, or an application credential")
	v.check((a.Password == "") != (a.PasswordFile == ""), "password", "", "exactly one of password and passwordFile")
	v.check((a.ProjectName == "") != (a.ProjectID == ""), "projectID", a.ProjectID, "exactly one of projectID and projectName")
	v.check(a.Username == "" || a.UserDomainName != "" || a.UserDomainID != "", "userDomainName", "",
		"the domain of the user, often Default, because username is unique only per domain")
	v.check(a.ProjectName == "" || a.ProjectDomainName != "" || a.ProjectDomainID != "", "projectDomainName", "",
		"the domain of the project, often Default, because projectName is unique only per domain")
}

func (g *GroupConfig) validate(v *configErrors) {
	v.check((len(g.Flavors) > 0) != (g.FlavorSelection != nil), "flavors", strings.Join(g.Flavors, ","),
		"the names of flavors, or else flavorSelection")
	for i, f := range g.Flavors {
		v.check(f != "" && !slices.Contains(g.Flavors[:i], f), fmt.Sprintf("flavors[%d]", i), f, "a flavor that is not listed before")
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
	v.check(g.Image.ID == "" || uuidPattern.MatchString(g.Image.ID), "image.id", g.Image.ID, "the ID of an image, a UUID")
	v.check(slices.Contains([]string{"", "public", "private", "shared", "community"}, g.Image.Visibility), "image.visibility",
		g.Image.Visibility, "public, private, shared or community")
	v.check(g.BootVolume == nil || g.BootVolume.SizeGiB > 0, "bootVolume.sizeGiB", "0 or less", "1 or more")
	v.check((len(g.Networks) > 0) != (len(g.Ports) > 0), "networks", strings.Join(g.Networks, ","),
		"at least one network, by name or ID, or else ports")
	for i := range g.Ports {
		g.Ports[i].validate(v, fmt.Sprintf("ports[%d].", i))
	}
	for field, list := range map[string][]string{
		"networks": g.Networks, "securityGroups": g.SecurityGroups, "availabilityZones": g.AvailabilityZones,
	} {
		for i, name := range list {
			v.check(name != "" && !slices.Contains(list[:i], name), fmt.Sprintf("%s[%d]", field, i), name, "a name that is not listed before")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(g.Metadata)) {
		v.check(metadataKeyPattern.MatchString(key) && key != ClusterKey && key != GroupKey, "metadata", key,
			"a key of up to 255 letters, digits, space and _ : . -, other than "+ClusterKey+" and "+GroupKey)
		v.check(len(g.Metadata[key]) <= maxMetadataLength, "metadata."+key, g.Metadata[key], fmt.Sprintf("up to %d bytes", maxMetadataLength))
	}
	v.check(g.UserData == "" || g.UserDataFile == "", "userData", "given", "either userData or userDataFile")
	prefix := g.namePrefix()
	v.check(hostPrefixPattern.MatchString(prefix), "namePrefix", prefix,
		"up to 55 lowercase letters, digits and -, starting with a letter, because host names start with it")
	v.check(g.Nodes.Cost >= 0, "nodes.cost", fmt.Sprint(g.Nodes.Cost), "0 or more")
	for _, name := range cloud.NegativeResources(g.Nodes.Reserved) {
		v.check(false, "nodes.reserved."+name, "less than 0", "0 or more")
	}
	for i, r := range g.Resources {
		v.check(r.ExtraSpec != "" && strings.Contains(r.Resource, "/"), fmt.Sprintf("resources[%d]", i), r.Resource,
			"extraSpec, and a resource with a domain, such as nvidia.com/gpu")
	}
}

var vnicTypes = []string{
	"", "normal", "direct", "direct-physical", "macvtap", "baremetal", "virtio-forwarder", "vdpa", "accelerator-direct", "remote-managed",
}

func (p *Port) validate(v *configErrors, field string) {
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
		"none if portSecurity is false, which allows every source address")
}

func (g *GroupConfig) namePrefix() string {
	if g.NamePrefix == "" {
		return g.Name
	}
	return g.NamePrefix
}

// readUserDataTemplate returns the text of the user data template. It returns "" for a group without a template.
func (g *GroupConfig) readUserDataTemplate() (string, error) {
	if g.UserDataFile == "" {
		return g.UserData, nil
	}
	raw, err := os.ReadFile(g.UserDataFile)
	if err != nil {
		return "", fmt.Errorf("userDataFile: %w", err)
	}
	return string(raw), nil
}

// configErrors collects configuration errors.
type configErrors struct {
	fieldPrefix string // prefix of the fields that follow
	errs        []error
}

func (v *configErrors) check(ok bool, field, value, want string) {
	if !ok {
		v.add(field, fmt.Sprintf("%q", value), want)
	}
}

func (v *configErrors) checkURL(field, value string) {
	u, err := url.Parse(value)
	v.check(err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil && u.RawQuery == "" &&
		u.Fragment == "", field, value, "an https URL without query")
}

func (v *configErrors) add(field string, value any, want string) {
	v.errs = append(v.errs, fmt.Errorf("openstack %s%s: %v: want %s", v.fieldPrefix, field, value, want))
}

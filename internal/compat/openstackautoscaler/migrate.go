package openstackautoscaler

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/cloud/openstack"
	"github.com/slipway-dev/slipway/internal/compat"
)

// File is one of the files that a migration produces.
type File struct {
	Name    string
	Content []byte
	// Secret is true for a file with a password.
	Secret bool
}

// cloudsYAMLEntry is the name of the entry in the clouds.yaml file of a migration.
const cloudsYAMLEntry = "openstack"

// missingClusterName is the comment that replaces a missing cluster name. There is no safe default, because another
// cluster of the project could have the same name.
const missingClusterName = `# clusterName: enter a name that is unique in the project, such as the UID of the namespace kube-system
# (kubectl get namespace kube-system -o jsonpath={.metadata.uid}). Servers that are marked with it and have no Node are deleted.
# slipway manager does not start without it.
`

// Migrate converts the tool's file to NodeGroups, a --cloud-config file and a clouds.yaml. cluster is the cluster's
// name. If it is empty, the user must add the name to the --cloud-config file. controlPlaneNodes is the number of
// control plane nodes.
func Migrate(raw []byte, cluster string, controlPlaneNodes int) ([]File, error) {
	c, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	if c.CloudType != OpenStack {
		return nil, fmt.Errorf("CloudType: %q: the configuration of its plugin cannot be converted: want %s", c.CloudType, OpenStack)
	}
	if controlPlaneNodes < 0 {
		return nil, fmt.Errorf("--control-plane-nodes: %d: want 0 or more", controlPlaneNodes)
	}
	notes := append(append([]string{}, c.Warnings...), c.migrationNotes(controlPlaneNodes)...)
	group, err := compat.FormatNodeGroup(c.ToNodeGroup(controlPlaneNodes))
	if err != nil {
		return nil, err
	}
	config := c.ToCloudConfig(cluster)
	config.Auth, config.Cloud, config.CloudsFile = nil, cloudsYAMLEntry, "clouds.yaml"
	named, todo := config, ""
	if cluster == "" {
		named.ClusterName, todo = "unnamed", missingClusterName
	}
	if err := named.Validate(); err != nil {
		return nil, err
	}
	clouds, err := yaml.Marshal(map[string]openstack.Config{openstack.Name: config})
	if err != nil {
		return nil, err
	}
	secret, err := yaml.Marshal(c.toCloudsYAML())
	if err != nil {
		return nil, err
	}
	head := func(purpose string) string {
		return "# " + purpose + ", converted from a configuration of " + Tool + ".\n"
	}
	return []File{
		{"nodegroups.yaml", []byte(head("For kubectl apply, or slipway manager --node-groups") + "#\n" + compat.FormatComments(notes) + string(group)), false},
		{"cloud-config.yaml", []byte(head("For slipway manager --cloud-config") + todo + string(clouds)), false},
		{"clouds.yaml", []byte(head("The credentials, for a Secret that is mounted at the path of cloudsFile") + string(secret)), true},
	}, nil
}

// FormatFiles returns the files as one sequence of YAML documents.
func FormatFiles(files []File) []byte {
	var b strings.Builder
	for i, f := range files {
		if i > 0 {
			b.WriteString("---\n")
		}
		b.WriteString("# File " + f.Name + "\n")
		b.Write(f.Content)
	}
	return []byte(b.String())
}

// toCloudsYAML returns a clouds.yaml with the tool's credentials.
func (c *Config) toCloudsYAML() map[string]any {
	return map[string]any{"clouds": map[string]any{cloudsYAMLEntry: map[string]any{
		"identity_api_version": 3,
		"auth": map[string]any{
			"auth_url": c.AuthOptions.IdentityEndpoint, "username": c.AuthOptions.Username, "password": c.AuthOptions.Password,
			"project_id": c.AuthOptions.TenantID, "user_domain_name": c.AuthOptions.DomainName,
		},
	}}}
}

// migrationNotes returns the differences between the tool and Slipway that may matter to users.
func (c *Config) migrationNotes(controlPlane int) []string {
	notes := []string{
		fmt.Sprintf("minSize and maxSize count only the group's nodes: MinNodeCount %d and MaxNodeCount %d minus %d control plane nodes, which "+
			"the autoscaler counted too. minSize now always holds; the autoscaler ignored it if a node's CPU was idle. As before, no "+
			"machine is launched for minSize: scaleUp.enforceMinSize: true launches the missing ones.",
			*c.MinNodeCount, *c.MaxNodeCount, controlPlane),
		"Nodes are cordoned and drained before their machine is deleted. PodDisruptionBudgets are respected, and pods with local storage or " +
			"without a controller protect their node. The autoscaler deleted the Node and the server with the pods on it.",
		fmt.Sprintf("The cooldown of %s is stored on the Node, so a restart does not reset it. DaemonSet pods do not protect a node. The "+
			"autoscaler counted DaemonSet pods, so a node was always or never idle.", c.CoolDown()),
		fmt.Sprintf("A node is removed if its pods request at most %d %% of its allocatable CPU, if it has at most %d pods, and if all of them fit "+
			"on other nodes, so no new machine is needed for them. The autoscaler used the percentage of the capacity. "+
			"underutilized.consolidate: true also empties busier nodes if their pods fit on others.", cpuAtMost, podsAtMost),
		"Several machines are launched at once, as many as the unschedulable pods need, each with the first flavour that fits. The " +
			"autoscaler launched one at a time, and no further one until a pending pod was scheduled.",
		"A server in ERROR, or one that does not join, is deleted and the next flavour is used. The autoscaler waited for it forever.",
		"Pending pods are evaluated like the scheduler does: all quantity formats (500m, 1Gi), taints, affinity, volumes and namespaces. " +
			"The autoscaler parsed the English text of the condition, divided memory by 1024·1000, failed at 500m, and confused pods with " +
			"the same name in two namespaces.",
		"The vCPUs and memory of a flavour are read from Nova. VCPU and Memory of the file are not used.",
		"Pods can use all memory of a flavour except 100Mi, which kubeadm's kubelets reserve. The autoscaler assumed all of it. If your " +
			"kubelets reserve more, set nodes.reserved in cloud-config.yaml. Once a node of a flavour has joined, its values are used.",
		"The region is OS_REGION_NAME, or the only existing one. The autoscaler had LK built in. If there are several regions, add region to " +
			"cloud-config.yaml.",
		"The token is renewed when it expires. The autoscaler requested a token with each call.",
		"New servers have the metadata " + openstack.ClusterKey + " and " + openstack.GroupKey + ". Servers of the autoscaler are adopted by " +
			"their name (" + namePrefix + "…). No other server is ever deleted.",
		"If slipway openstack-autoscaler ran without -cluster-name, its servers are marked with the UID of the namespace kube-system: use that " +
			"UID as --cluster-name, or add it to formerClusterNames in cloud-config.yaml.",
		"slipway manager does not carry out the NodeRetirements of slipway " + Tool + ". Stop slipway " + Tool + " when none with the label " +
			GroupLabel + "=" + Group + " is in progress, or remove the label from them afterwards.",
		"A Node without spec.providerID is paired by its system UUID, as with the autoscaler. The server's name must match the Node's name, " +
			"with or without a domain.",
	}
	if name := c.OpenStackFlavours.DefaultFlavour; name != "" {
		notes = append(notes, "DefaultFlavour: "+name+" is the last choice unless it is in the list. The autoscaler used it for pods "+
			"without requests. Slipway treats these like other pods.")
	}
	if warning := c.FullControlPlaneWarning(controlPlane); warning != "" {
		notes = append(notes, warning)
	}
	if c.CoolDownTime == nil {
		notes = append(notes, "CoolDownTime: is not set; 10m is used, as in the autoscaler's example. The autoscaler itself used 0, which means at once.")
	}
	if strings.HasPrefix(c.AuthOptions.IdentityEndpoint, "http://") {
		notes = append(notes, "AuthOptions.IdentityEndpoint: is not https: the password is sent in plain text.")
	}
	return notes
}

package openstackautoscaler

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/cloud/openstack"
	"github.com/slipway-dev/slipway/internal/compat"
)

// File is one of the files that a migration makes.
type File struct {
	Name    string
	Content []byte
	// Secret says that it holds a password.
	Secret bool
}

// cloudEntry is the name of the entry of clouds.yaml.
const cloudEntry = "openstack"

// unnamed is said where the cluster has not been given a name: none that could be made up is known to be nobody else's.
const unnamed = `# clusterName: put a name in here that no other cluster of the project has, such as the UID of namespace kube-system
# (kubectl get namespace kube-system -o jsonpath={.metadata.uid}). Servers that are marked with it and have no Node are deleted;
# slipway manager does not start without it.
`

// Migrate makes the modern configuration of the tool's file, for a cluster of that name with so many nodes in its control
// plane: NodeGroups, the file of --cloud-config, and a clouds.yaml. Without a name it has to be put into the second one.
func Migrate(raw []byte, cluster string, controlPlane int) ([]File, error) {
	c, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	if c.CloudType != OpenStack {
		return nil, fmt.Errorf("CloudType: %q: its plugin holds the configuration, and is not read here: want %s", c.CloudType, OpenStack)
	}
	if controlPlane < 0 {
		return nil, fmt.Errorf("%d nodes in the control plane: want 0 or more", controlPlane)
	}
	notes := append(append([]string{}, c.Warnings...), c.notes(controlPlane)...)
	group, err := compat.NodeGroupFile(c.NodeGroup(controlPlane))
	if err != nil {
		return nil, err
	}
	config := c.Cloud(cluster)
	config.Auth, config.Cloud, config.CloudsFile = nil, cloudEntry, "clouds.yaml"
	named, todo := config, ""
	if cluster == "" {
		named.ClusterName, todo = "unnamed", unnamed
	}
	if err := named.Validate(); err != nil {
		return nil, err
	}
	clouds, err := yaml.Marshal(map[string]openstack.Config{openstack.Name: config})
	if err != nil {
		return nil, err
	}
	secret, err := yaml.Marshal(c.cloudsYAML())
	if err != nil {
		return nil, err
	}
	head := func(purpose string) string { return "# " + purpose + ", made from a configuration of " + Tool + ".\n" }
	return []File{
		{"nodegroups.yaml", []byte(head("For kubectl apply, or slipway manager --node-groups") + "#\n" + compat.Comments(notes) + string(group)), false},
		{"cloud-config.yaml", []byte(head("For slipway manager --cloud-config") + todo + string(clouds)), false},
		{"clouds.yaml", []byte(head("The credential, for a Secret that is mounted where cloudsFile says") + string(secret)), true},
	}, nil
}

// Print writes the files one after the other, as documents of YAML.
func Print(files []File) []byte {
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

// cloudsYAML is the credential as OpenStack's own client reads it.
func (c *Config) cloudsYAML() map[string]any {
	return map[string]any{"clouds": map[string]any{cloudEntry: map[string]any{
		"identity_api_version": 3,
		"auth": map[string]any{
			"auth_url": c.AuthOptions.IdentityEndpoint, "username": c.AuthOptions.Username, "password": c.AuthOptions.Password,
			"project_id": c.AuthOptions.TenantID, "user_domain_name": c.AuthOptions.DomainName,
		},
	}}}
}

// notes are what is done otherwise than the tool did, where somebody may have come to depend on it.
func (c *Config) notes(controlPlane int) []string {
	notes := []string{
		fmt.Sprintf("minSize and maxSize count the group's nodes alone: MinNodeCount %d and MaxNodeCount %d less %d of the control plane, "+
			"which the autoscaler counted with them. minSize now always holds; it did not when a node's CPU was idle. It orders no "+
			"machine, as before: scaleUp.enforceMinSize: true has those ordered that are missing.",
			*c.MinNodeCount, *c.MaxNodeCount, controlPlane),
		"Nodes are cordoned and drained before their machine goes, disruption budgets hold, and pods with local storage or without a " +
			"controller keep their node. The autoscaler deleted the Node and the server with the pods on it.",
		fmt.Sprintf("A cooldown of %s is remembered on the Node, so that a restart does not forget it. Pods of DaemonSets do not keep a node; "+
			"the autoscaler counted them, so that a node was always or never idle.", c.CoolDown()),
		fmt.Sprintf("A node leaves when its pods request at most %d %% of its allocatable CPU, and are at most %d, and all of them have a place on "+
			"other nodes, so that no machine has to come back for them. The autoscaler took the share of the capacity. underutilized.consolidate: "+
			"true goes further, and empties any node whose pods fit on others.", cpuAtMost, podsAtMost),
		"Several machines are made at once, as many as the pending pods need, and each in the first flavour that fits. The autoscaler made " +
			"one at a time, and none more until a waiting pod was scheduled.",
		"A server in ERROR, or one that does not join, is deleted and the next flavour taken. The autoscaler waited for it for ever.",
		"Pending pods are judged as the scheduler does: requests in any spelling (500m, 1Gi), taints, affinity, volumes and namespaces count. " +
			"The autoscaler read the English text of the condition, divided memory by 1024·1000, failed at 500m, and mixed up pods of " +
			"one name in two namespaces.",
		"The vCPUs and memory of a flavour are read from Nova. VCPU and Memory of the file are not used.",
		"Of a flavour pods may take all but 100Mi of memory, which is what the kubelets of kubeadm keep. The autoscaler took all of it. Where " +
			"yours keep more, say so in nodes.reserved of cloud-config.yaml. Once a node of a flavour has joined, what it shows counts.",
		"The region is OS_REGION_NAME, or the only one that there is; the autoscaler had LK built in. Add region to cloud-config.yaml where " +
			"there are several.",
		"The token is renewed when it ends. The autoscaler asked for one with each call.",
		"New servers carry the metadata " + openstack.ClusterKey + " and " + openstack.GroupKey + ". Those that the autoscaler has made are taken over by " +
			"their name (" + namePrefix + "…). No other server is ever deleted.",
		"Where the autoscaler was run as slipway openstack-autoscaler without -cluster-name, its servers are marked with the UID of namespace " +
			"kube-system: take that for --cluster-name, or add it to formerClusterNames of cloud-config.yaml.",
		"A Node without spec.providerID is paired by its system UUID, as by the autoscaler, and the server's name has to be the Node's, " +
			"with or without a domain.",
	}
	if name := c.OpenStackFlavours.DefaultFlavour; name != "" {
		notes = append(notes, "DefaultFlavour: "+name+" is the last choice unless it is in the list. The autoscaler took it for pods "+
			"without requests; these count as pods that need a place on a node, and nothing else.")
	}
	if crowded := c.Crowded(controlPlane); crowded != "" {
		notes = append(notes, crowded)
	}
	if c.CoolDownTime == nil {
		notes = append(notes, "CoolDownTime: is not given; 10m, as in the autoscaler's example, stands for it. There it was 0: at once.")
	}
	if strings.HasPrefix(c.AuthOptions.IdentityEndpoint, "http://") {
		notes = append(notes, "AuthOptions.IdentityEndpoint: is not https: the password is sent in the clear.")
	}
	return notes
}

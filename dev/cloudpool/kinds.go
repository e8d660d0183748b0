package cloudpool

import "fmt"

// Kind is the cloud of a pool's machines. The values are the values of the API's field cloudProvider. Kind
// determines the form of machine IDs and of the Nodes' provider IDs.
type Kind string

const (
	OpenStack Kind = "OpenStack"
	EC2       Kind = "AWS-EC2"
	Spot      Kind = "AWS-SPOT"
	GCE       Kind = "GCE"
	Azure     Kind = "Azure"
)

// The account names in the provider IDs of GCE and Azure.
const (
	Project      = "demo-project"
	Zone         = "europe-west1-b"
	Subscription = "00000000-0000-0000-0000-000000000001"
)

// setIdentity sets the ID and the provider ID of a machine, and the cloud's description of the machine.
func (p *Pool) setIdentity(m *Machine, id string) {
	short := id[:8] + id[9:13] + id[14:18]
	switch p.opts.Kind {
	case EC2, Spot:
		m.ID, m.Size = "i-"+short, "m5.large"
		m.ProviderID = "aws:///" + p.opts.Region + "a/" + m.ID
		m.Metadata = map[string]any{"instanceId": m.ID, "privateDnsName": m.NodeName}
		if p.opts.Kind == Spot {
			m.Metadata["spotInstanceRequestId"] = "sir-" + id[:8]
			m.ID = "sir-" + id[:8]
		}
	case GCE:
		m.ID = fmt.Sprintf("https://www.googleapis.com/compute/v1/projects/%s/zones/%s/instances/%s", Project, Zone, m.NodeName)
		m.ProviderID, m.Size = fmt.Sprintf("gce://%s/%s/%s", Project, Zone, m.NodeName), "n1-standard-4"
	case Azure:
		m.ID = fmt.Sprintf("/subscriptions/%s/resourceGroups/demo/providers/Microsoft.Compute/virtualMachines/%s", Subscription, m.NodeName)
		m.ProviderID, m.Size = "azure://"+m.ID, "Standard_D4s_v5"
	default:
		m.ID, m.ProviderID, m.Size = id, "openstack:///"+id, "m1.large"
		m.Metadata = map[string]any{"id": id, "name": m.NodeName}
	}
	if p.opts.NoMetadata {
		m.Metadata = nil
	}
}

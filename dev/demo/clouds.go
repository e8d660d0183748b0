package demo

import (
	"context"
	"io"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/slipway-dev/slipway/dev/controlplane"
	openstackdev "github.com/slipway-dev/slipway/dev/openstack"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

// The values of Options.Cloud.
const (
	EmulatedAzure  = ""
	RealOpenStack  = "openstack"
	EmulatedAWS    = "aws"
	EmulatedGoogle = "gcp"
)

// emulatedCloud is a crowdCloud that uses the testbed's emulated Azure.
type emulatedCloud struct{}

// crowdPool is the pool of the autoscaling step. At first it has no machine.
var crowdPool = controlplane.AKSPool{Name: crowd}

func (emulatedCloud) title() string                              { return "Azure" }
func (emulatedCloud) group() (string, string)                    { return azure.Name, crowdPool.ScaleSetName() }
func (emulatedCloud) joinMachines(context.Context, *stage) error { return nil } // the emulator joins the nodes
func (emulatedCloud) labels() map[string]string {
	return map[string]string{"kubernetes.azure.com/agentpool": crowdPool.Name}
}

// machineType returns a machine type of 16 cores. 15 pods of one core fit on a machine, as long as no node has shown
// how much the system itself needs.
func (emulatedCloud) machineType() (kind, cpu string, machines int) {
	return crowdPool.Node(0).Labels[corev1.LabelInstanceTypeStable], "1", 5
}

func (emulatedCloud) prepareCloud(ctx context.Context, s *stage) (map[string]any, error) {
	if err := s.AddPool(ctx, crowdPool, 0); err != nil {
		return nil, err
	}
	config := s.AzureProviderConfig()
	config.Groups = append(config.Groups, testbed.EmptyGroupConfig(crowdPool.ScaleSetName()))
	return map[string]any{azure.Name: config}, nil
}

func (emulatedCloud) listMachineTypes(_ context.Context, s *stage) (kinds []string, err error) {
	for _, vm := range s.ARM.VMs() {
		if strings.EqualFold(vm.ScaleSet, crowdPool.ScaleSetName()) {
			kinds = append(kinds, vm.Size)
		}
	}
	return kinds, nil
}

// openStackCloud is a crowdCloud that uses an OpenStack on this machine.
type openStackCloud struct {
	*openstackdev.Cloud
	nova *gophercloud.ServiceClient
	stop func() error
}

// startOpenStack starts OpenStack on this machine. If OpenStack is missing, it installs the packages first.
func startOpenStack(ctx context.Context, out io.Writer) (*openStackCloud, error) {
	started, stop, err := openstackdev.InstallAndStart(ctx, "demo", crowdMetadata, out)
	if err != nil {
		return nil, err
	}
	nova, err := started.NewNovaClient(ctx, openstackdev.DemoCloud)
	if err != nil {
		_ = stop() // err has the reason
		return nil, err
	}
	return &openStackCloud{Cloud: started, nova: nova, stop: stop}, nil
}

// crowdMetadata is the metadata of the servers that belong to the demo.
var crowdMetadata = map[string]string{openstack.ClusterKey: "demo", openstack.GroupKey: crowd}

func (*openStackCloud) title() string             { return "Nova" }
func (*openStackCloud) group() (string, string)   { return openstack.Name, crowd }
func (*openStackCloud) labels() map[string]string { return map[string]string{"pool": crowd} }

// machineType returns the flavor of four cores. Seven pods fit on such a server, beside the pods of the system. The
// small flavor has too little memory for any pod.
func (*openStackCloud) machineType() (kind, cpu string, machines int) { return "m.4c8g", "500m", 10 }

func (r *openStackCloud) prepareCloud(context.Context, *stage) (map[string]any, error) {
	return map[string]any{openstack.Name: openstack.Config{
		Cloud: openstackdev.DemoCloud, CloudsFile: r.CloudsFile(), ClusterName: crowdMetadata[openstack.ClusterKey], Groups: []openstack.GroupConfig{{
			Name: crowd, Flavors: []string{"t.1c512m", "m.4c8g"}, Image: openstack.Image{Name: "tiny"}, Networks: []string{"demo-net"},
			SecurityGroups: []string{"demo-sg"}, KeyPair: openstackdev.KeyPair, Nodes: cloud.NodeShape{Labels: r.labels()},
		}},
	}}, nil
}

func (r *openStackCloud) listMachineTypes(ctx context.Context, _ *stage) (kinds []string, err error) {
	all, err := openstackdev.ListServers(ctx, r.nova, crowdMetadata)
	for i := range all {
		name, _ := all[i].Flavor["original_name"].(string)
		kinds = append(kinds, name)
	}
	return kinds, err
}

func (r *openStackCloud) joinMachines(ctx context.Context, s *stage) error {
	return r.SyncNodes(ctx, s, crowdMetadata, r.labels())
}

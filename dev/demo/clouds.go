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

// The clouds for Options.Cloud.
const (
	EmulatedAzure = ""
	RealOpenStack = "openstack"
)

// emulated is the testbed's Azure.
type emulated struct{}

// crowdPool has no machine at first.
var crowdPool = controlplane.AKSPool{Name: crowd}

func (emulated) title() string                        { return "Azure" }
func (emulated) group() (string, string)              { return azure.Name, crowdPool.ScaleSet() }
func (emulated) follow(context.Context, *stage) error { return nil } // the emulator joins the nodes
func (emulated) labels() map[string]string {
	return map[string]string{"kubernetes.azure.com/agentpool": crowdPool.Name}
}

// right returns a machine size of 16 cores. As long as no node has shown the system's own use, 15 pods fit on one.
func (emulated) right() (kind, cpu string, machines int) {
	return crowdPool.Node(0).Labels[corev1.LabelInstanceTypeStable], "1", 5
}

func (emulated) prepare(ctx context.Context, s *stage) (map[string]any, error) {
	if err := s.AddPool(ctx, crowdPool, 0); err != nil {
		return nil, err
	}
	config := s.AzureConfig()
	config.Groups = append(config.Groups, testbed.GroupFromNone(crowdPool.ScaleSet()))
	return map[string]any{azure.Name: config}, nil
}

func (emulated) machines(_ context.Context, s *stage) (kinds []string, err error) {
	for _, vm := range s.ARM.VMs() {
		if strings.EqualFold(vm.ScaleSet, crowdPool.ScaleSet()) {
			kinds = append(kinds, vm.Size)
		}
	}
	return kinds, nil
}

// real is an OpenStack on this machine.
type real struct {
	*openstackdev.Cloud
	nova *gophercloud.ServiceClient
	stop func() error
}

// startOpenStack installs OpenStack if needed, and starts it.
func startOpenStack(ctx context.Context, out io.Writer) (*real, error) {
	started, stop, err := openstackdev.Begin(ctx, "demo", crowdMark, out)
	if err != nil {
		return nil, err
	}
	nova, err := started.Nova(ctx, openstackdev.Demo)
	if err != nil {
		_ = stop() // err has the reason
		return nil, err
	}
	return &real{Cloud: started, nova: nova, stop: stop}, nil
}

// crowdMark is the metadata of the servers.
var crowdMark = map[string]string{openstack.ClusterKey: "demo", openstack.GroupKey: crowd}

func (*real) title() string             { return "Nova" }
func (*real) group() (string, string)   { return openstack.Name, crowd }
func (*real) labels() map[string]string { return map[string]string{"pool": crowd} }

// right returns the flavor of four cores. Next to the system's own use seven pods fit on a server. None fits on the
// small flavor, which has too little memory.
func (*real) right() (kind, cpu string, machines int) { return "m.4c8g", "500m", 10 }

func (r *real) prepare(context.Context, *stage) (map[string]any, error) {
	return map[string]any{openstack.Name: openstack.Config{
		Cloud: openstackdev.Demo, CloudsFile: r.CloudsFile(), ClusterName: crowdMark[openstack.ClusterKey], Groups: []openstack.GroupConfig{{
			Name: crowd, Flavors: []string{"t.1c512m", "m.4c8g"}, Image: openstack.Image{Name: "tiny"}, Networks: []string{"demo-net"},
			SecurityGroups: []string{"demo-sg"}, KeyPair: openstackdev.KeyPair, Nodes: cloud.Shape{Labels: r.labels()},
		}},
	}}, nil
}

func (r *real) machines(ctx context.Context, _ *stage) (kinds []string, err error) {
	all, err := openstackdev.Servers(ctx, r.nova, crowdMark)
	for i := range all {
		name, _ := all[i].Flavor["original_name"].(string)
		kinds = append(kinds, name)
	}
	return kinds, err
}

func (r *real) follow(ctx context.Context, s *stage) error {
	return r.Join(ctx, s, crowdMark, r.labels())
}

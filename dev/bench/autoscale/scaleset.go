package autoscale

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloud/azure"
)

// newScaleSetCloud returns a testCloud for a scale set of the emulated Azure. Its machines take long to start.
func newScaleSetCloud(ctx context.Context, bed *testbed.Testbed) (testCloud, error) {
	const cores = 16
	pool := controlplane.AKSPool{Name: "bench"}
	if err := bed.AddPool(ctx, pool, 0); err != nil {
		return testCloud{}, err
	}
	config := bed.AzureProviderConfig()
	config.Groups = append(config.Groups, azure.GroupConfig{Name: pool.ScaleSetName(), ScaleSet: pool.ScaleSetName(), Nodes: cloud.NodeShape{
		Capacity: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(cores, resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("64Gi")},
	}})
	made := func() (times []time.Time) {
		for _, vm := range bed.ARM.VMs() {
			if strings.EqualFold(vm.ScaleSet, pool.ScaleSetName()) {
				times = append(times, vm.Created)
			}
		}
		slices.SortFunc(times, time.Time.Compare)
		return times
	}
	return testCloud{
		cores: cores, cpu: "1", labels: map[string]string{"kubernetes.azure.com/agentpool": pool.Name},
		config:        map[string]any{azure.Name: config},
		group:         testbed.ScaleSetNodeGroupSpec(pool.Name, pool.ScaleSetName()) + "maxSize: 1000\nscaleUp: {joinTimeout: 1h}\n",
		creationTimes: made, timesSource: "measured by the emulator's creation times",
		awaitAllMachines: func(context.Context) error { return checkMachineCount(len(made())) },
	}, nil
}

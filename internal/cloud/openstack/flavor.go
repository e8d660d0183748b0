package openstack

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// listPageSize is the number of items per page in every list except the list of servers.
const listPageSize = 200

// defaultMaxPods is the kubelet's default for the maximum number of pods on a Node.
const defaultMaxPods = 110

// Templates returns the flavors of a group with their capacity. It sets the zone of a template only if the group has
// exactly one zone.
func (p *Provider) Templates(ctx context.Context, name string) ([]cloud.Template, error) {
	g, err := p.findGroup(name)
	if err != nil {
		return nil, err
	}
	r, err := p.resolveNames(ctx, g)
	if err != nil {
		return nil, err
	}
	zone := ""
	if zones := g.AvailabilityZones; len(zones) > 0 && !slices.ContainsFunc(zones, func(z string) bool { return cutHost(z) != cutHost(zones[0]) }) {
		zone = cutHost(zones[0])
	}
	templates := make([]cloud.Template, len(r.flavors))
	for i := range r.flavors {
		shape := g.Nodes
		if shape.Capacity, err = g.flavorCapacity(&r.flavors[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", g, err)
		}
		templates[i] = cloud.Template{Name: r.flavors[i].Name, Zone: zone, NodeShape: shape}
	}
	return templates, nil
}

// flavorCapacity returns the capacity of a server with the given flavor. Configured values take precedence over the
// flavor's values.
func (g *group) flavorCapacity(f *flavors.Flavor) (corev1.ResourceList, error) {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(f.VCPUs), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(int64(f.RAM)<<20, resource.BinarySI), // MB in Nova are MiB
		corev1.ResourcePods:   *resource.NewQuantity(defaultMaxPods, resource.DecimalSI),
	}
	disk := f.Disk
	if g.BootVolume != nil {
		disk = g.BootVolume.SizeGiB
	}
	if disk > 0 { // 0 means the size of the image
		list[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(disk)<<30, resource.BinarySI)
	}
	for _, r := range g.Resources {
		value, declared := f.ExtraSpecs[r.ExtraSpec]
		if !declared {
			continue
		}
		n, err := sumDeviceCounts(value)
		if err != nil {
			return nil, newInvalidError("flavor %s: extra spec %s: %w", f.Name, r.ExtraSpec, err)
		}
		sum := list[corev1.ResourceName(r.Resource)]
		sum.Add(*resource.NewQuantity(n, resource.DecimalSI))
		list[corev1.ResourceName(r.Resource)] = sum
	}
	for name, quantity := range g.Nodes.Capacity {
		list[name] = quantity
	}
	return list, nil
}

// maxDeviceCount is the highest number of devices that is accepted in a flavor's extra spec.
const maxDeviceCount = 1 << 16

// sumDeviceCounts parses the number of devices in an extra spec. The value is a number, or a list of aliases with
// numbers such as a:1,b:2. The numbers of a list are added.
func sumDeviceCounts(value string) (int64, error) {
	var sum int64
	for part := range strings.SplitSeq(value, ",") {
		count := strings.TrimSpace(part)
		if i := strings.LastIndex(count, ":"); i >= 0 {
			count = strings.TrimSpace(count[i+1:])
		}
		n, err := strconv.ParseInt(count, 10, 32)
		if err != nil || n < 0 || n > maxDeviceCount {
			return 0, fmt.Errorf("%.100q: want a number, or aliases with their numbers such as a100:2", value)
		}
		sum += n
	}
	return sum, nil
}

// usableFlavors returns the usable flavors of a group, the preferred one first. If no flavor is usable, it returns err.
// unusableErr describes the flavors that do not exist or cannot be read.
func usableFlavors(ctx context.Context, c *gophercloud.ServiceClient, g *group) (usable []flavors.Flavor, unusableErr, err error) {
	all, err := listAllPages(ctx, c, pagedList[flavors.Flavor]{
		path: "flavors/detail", key: "flavors", pageSize: listPageSize, idOf: func(f *flavors.Flavor) string { return f.ID },
	})
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	chosen := make([]flavors.Flavor, 0, len(g.Flavors))
	if g.FlavorSelection != nil {
		if chosen, err = g.FlavorSelection.selectFlavors(all); err != nil {
			return nil, nil, err
		}
	}
	for i, name := range g.Flavors {
		f, err := findFlavor(all, name)
		if err != nil {
			errs = append(errs, newInvalidError("flavors[%d]: %w", i, err))
			continue
		}
		chosen = append(chosen, f)
	}
	for i := range chosen {
		if _, err := g.flavorCapacity(&chosen[i]); err != nil {
			errs = append(errs, err)
			continue
		}
		usable = append(usable, chosen[i])
	}
	if len(usable) == 0 {
		return nil, nil, joinOrSingleError(errs)
	}
	return usable, joinOrSingleError(errs), nil
}

// findFlavor finds a flavor by ID or name. Flavor names are unique in Nova.
func findFlavor(all []flavors.Flavor, name string) (flavors.Flavor, error) {
	var names []string
	for _, f := range all {
		if f.Name == name || f.ID == name {
			return f, nil
		}
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return flavors.Flavor{}, fmt.Errorf("%q: flavor not found in this project: want one of %s", name, joinLimited(names))
}

// selectFlavors returns all flavors within the limits, the smallest first.
func (s *FlavorSelection) selectFlavors(all []flavors.Flavor) ([]flavors.Flavor, error) {
	name, err := regexp.Compile("^(?:" + s.Name + ")$")
	if err != nil {
		return nil, newInvalidError("flavorSelection.name: %q: %w", s.Name, err)
	}
	var chosen []flavors.Flavor
	for _, f := range all {
		if s.matches(&f) && (s.Name == "" || name.MatchString(f.Name)) {
			chosen = append(chosen, f)
		}
	}
	if len(chosen) == 0 {
		return nil, newInvalidError("flavorSelection: none of the project's %d flavors is within the limits", len(all))
	}
	slices.SortFunc(chosen, func(a, b flavors.Flavor) int {
		return cmp.Or(cmp.Compare(a.VCPUs, b.VCPUs), cmp.Compare(a.RAM, b.RAM), cmp.Compare(a.Disk, b.Disk), cmp.Compare(a.Name, b.Name))
	})
	return chosen, nil
}

func (s *FlavorSelection) matches(f *flavors.Flavor) bool {
	memory := *resource.NewQuantity(int64(f.RAM)<<20, resource.BinarySI)
	if f.VCPUs < s.MinVCPUs || s.MaxVCPUs > 0 && f.VCPUs > s.MaxVCPUs ||
		s.MinMemory != nil && memory.Cmp(*s.MinMemory) < 0 || s.MaxMemory != nil && !s.MaxMemory.IsZero() && memory.Cmp(*s.MaxMemory) > 0 {
		return false
	}
	for key, value := range s.ExtraSpecs {
		if f.ExtraSpecs[key] != value {
			return false
		}
	}
	return true
}

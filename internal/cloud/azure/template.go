package azure

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerservice/armcontainerservice/v6"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// Templates gives the one size that a group's machines have, with the shape that the configuration declares, and what an
// agent pool says of its Nodes: labels, taints, and how many pods. ARM does not say with the group how much memory a size has.
func (p *Provider) Templates(ctx context.Context, name string) ([]cloud.Template, error) {
	g, err := p.group(name)
	if err != nil {
		return nil, err
	}
	template := cloud.Template{Shape: p.shapeOf(g)}
	if g.isPool() {
		pool, err := p.getPool(ctx, g)
		if err != nil {
			return nil, err
		}
		if err := checkCanGrow(g, pool); err != nil {
			return nil, err
		}
		template.Name = value(pool.Properties.VMSize)
		if err := addPool(&template.Shape, g, pool); err != nil {
			return nil, err
		}
	} else {
		set, err := p.getSet(ctx, g)
		if err != nil {
			return nil, err
		}
		if set.SKU != nil {
			template.Name = value(set.SKU.Name)
		}
	}
	if template.Name == "" {
		return nil, fmt.Errorf("reading %s: %w: it has no size of machines", g, errIncomplete)
	}
	return []cloud.Template{template}, nil
}

// shapeOf gives what the configuration declares of a group.
func (p *Provider) shapeOf(g group) cloud.Shape {
	for _, c := range p.config.Groups {
		if strings.EqualFold(c.Name, g.name) {
			return c.Nodes
		}
	}
	return cloud.Shape{}
}

// The labels that AKS sets on the Nodes of a pool; the last one is a taint of a Spot pool too. See
// https://learn.microsoft.com/azure/aks/use-labels.
const (
	poolLabel     = "agentpool"
	akspoolLabel  = "kubernetes.azure.com/agentpool"
	modeLabel     = "kubernetes.azure.com/mode"
	priorityLabel = "kubernetes.azure.com/scalesetpriority"
	spotPriority  = "spot"
)

// addPool adds to what is declared what AKS says of a pool's Nodes. What is declared comes first.
func addPool(shape *cloud.Shape, g group, pool armcontainerservice.AgentPool) error {
	properties := pool.Properties
	labels := map[string]string{poolLabel: g.pool, akspoolLabel: g.pool}
	if mode := value(properties.Mode); mode != "" {
		labels[modeLabel] = strings.ToLower(string(mode))
	}
	if os := value(properties.OSType); os != "" {
		labels[corev1.LabelOSStable] = strings.ToLower(string(os))
	}
	taints := slices.Clone(shape.Taints)
	if value(properties.ScaleSetPriority) == armcontainerservice.ScaleSetPrioritySpot {
		labels[priorityLabel] = spotPriority
		taints = addTaint(taints, corev1.Taint{Key: priorityLabel, Value: spotPriority, Effect: corev1.TaintEffectNoSchedule})
	}
	for key, v := range properties.NodeLabels {
		labels[key] = value(v)
	}
	for _, text := range properties.NodeTaints {
		taint, err := parseTaint(value(text))
		if err != nil {
			return fmt.Errorf("%s: %w", g, err)
		}
		taints = addTaint(taints, taint)
	}
	maps.Copy(labels, shape.Labels)
	shape.Labels, shape.Taints = labels, taints
	if n := value(properties.MaxPods); n > 0 {
		capacity := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(int64(n), resource.DecimalSI)}
		maps.Copy(capacity, shape.Capacity)
		shape.Capacity = capacity
	}
	return nil
}

// addTaint adds a taint, unless there is one of its key and effect.
func addTaint(taints []corev1.Taint, t corev1.Taint) []corev1.Taint {
	if slices.ContainsFunc(taints, func(has corev1.Taint) bool { return has.MatchTaint(&t) }) {
		return taints
	}
	return append(taints, t)
}

// parseTaint reads a taint as AKS writes it: key=value:effect, or key:effect.
func parseTaint(text string) (corev1.Taint, error) {
	rest, effect, ok := strings.Cut(text, ":")
	key, v, _ := strings.Cut(rest, "=")
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	if !ok || key == "" || !slices.Contains(effects, corev1.TaintEffect(effect)) {
		return corev1.Taint{}, fmt.Errorf("%w: taint %q: want key=value:effect with one of the effects %v", errIncomplete,
			cloud.Printable(text, maxCode), effects)
	}
	return corev1.Taint{Key: key, Value: v, Effect: corev1.TaintEffect(effect)}, nil
}

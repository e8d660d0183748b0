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

// Templates returns the group's only template. Its shape is the configured one, plus the labels, taints and maximum of
// pods of an agent pool. ARM does not report the memory of a size with the group.
func (p *Provider) Templates(ctx context.Context, name string) ([]cloud.Template, error) {
	g, err := p.findGroup(name)
	if err != nil {
		return nil, err
	}
	template := cloud.Template{NodeShape: p.configuredShape(g)}
	if g.isPool() {
		pool, err := p.getPool(ctx, g)
		if err != nil {
			return nil, err
		}
		if err := checkCanGrow(g, pool); err != nil {
			return nil, err
		}
		template.Name = deref(pool.Properties.VMSize)
		if err := addPoolShape(&template.NodeShape, g, pool); err != nil {
			return nil, err
		}
	} else {
		set, err := p.getScaleSet(ctx, g)
		if err != nil {
			return nil, err
		}
		if set.SKU != nil {
			template.Name = deref(set.SKU.Name)
		}
	}
	if template.Name == "" {
		return nil, fmt.Errorf("reading %s: %w: it has no VM size", g, errIncomplete)
	}
	return []cloud.Template{template}, nil
}

// configuredShape returns the configured shape of a group.
func (p *Provider) configuredShape(g group) cloud.NodeShape {
	for _, c := range p.config.Groups {
		if strings.EqualFold(c.Name, g.name) {
			return c.Nodes
		}
	}
	return cloud.NodeShape{}
}

// The labels that AKS sets on the Nodes of a pool. priorityLabel is also a taint of Spot pools. See
// https://learn.microsoft.com/azure/aks/use-labels.
const (
	poolLabel     = "agentpool"
	akspoolLabel  = "kubernetes.azure.com/agentpool"
	modeLabel     = "kubernetes.azure.com/mode"
	priorityLabel = "kubernetes.azure.com/scalesetpriority"
	spotPriority  = "spot"
)

// addPoolShape adds the labels, taints and maximum of pods of an agent pool to shape. The configured values of shape take
// precedence.
func addPoolShape(shape *cloud.NodeShape, g group, pool armcontainerservice.AgentPool) error {
	properties := pool.Properties
	labels := map[string]string{poolLabel: g.pool, akspoolLabel: g.pool}
	if mode := deref(properties.Mode); mode != "" {
		labels[modeLabel] = strings.ToLower(string(mode))
	}
	if os := deref(properties.OSType); os != "" {
		labels[corev1.LabelOSStable] = strings.ToLower(string(os))
	}
	taints := slices.Clone(shape.Taints)
	if deref(properties.ScaleSetPriority) == armcontainerservice.ScaleSetPrioritySpot {
		labels[priorityLabel] = spotPriority
		taints = addTaintIfMissing(taints, corev1.Taint{Key: priorityLabel, Value: spotPriority, Effect: corev1.TaintEffectNoSchedule})
	}
	for key, v := range properties.NodeLabels {
		labels[key] = deref(v)
	}
	for _, text := range properties.NodeTaints {
		taint, err := parseTaint(deref(text))
		if err != nil {
			return fmt.Errorf("%s: %w", g, err)
		}
		taints = addTaintIfMissing(taints, taint)
	}
	maps.Copy(labels, shape.Labels)
	shape.Labels, shape.Taints = labels, taints
	if n := deref(properties.MaxPods); n > 0 {
		capacity := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(int64(n), resource.DecimalSI)}
		maps.Copy(capacity, shape.Capacity)
		shape.Capacity = capacity
	}
	return nil
}

// addTaintIfMissing appends a taint unless the list has one with the same key and effect.
func addTaintIfMissing(taints []corev1.Taint, t corev1.Taint) []corev1.Taint {
	if slices.ContainsFunc(taints, func(has corev1.Taint) bool { return has.MatchTaint(&t) }) {
		return taints
	}
	return append(taints, t)
}

// parseTaint parses a taint in the format of AKS: key=value:effect or key:effect.
func parseTaint(text string) (corev1.Taint, error) {
	rest, effect, ok := strings.Cut(text, ":")
	key, v, _ := strings.Cut(rest, "=")
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	if !ok || key == "" || !slices.Contains(effects, corev1.TaintEffect(effect)) {
		return corev1.Taint{}, fmt.Errorf("%w: taint %q: want key=value:effect with one of the effects %v", errIncomplete,
			cloud.SanitizeText(text, maxCodeLength), effects)
	}
	return corev1.Taint{Key: key, Value: v, Effect: corev1.TaintEffect(effect)}, nil
}

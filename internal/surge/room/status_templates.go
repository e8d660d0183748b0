package room

import (
	"slices"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/provisioning/launch"
	"github.com/slipway-dev/slipway/internal/provisioning/plan"
)

// TemplatesFromStatus returns the instance templates of a NodeGroup with nodes that the manager has observed, for a process that does
// not read the cloud. known is false if the group may launch other templates too.
func TemplatesFromStatus(g *v1alpha1.NodeGroup, now time.Time) (templates []plan.Template, known bool) {
	up, status := g.Spec.ScaleUp, g.Status.Provisioning
	if up == nil || status == nil {
		return nil, up == nil
	}
	learned := status.Learned
	if len(up.Templates) > 0 {
		learned = nil
		for _, t := range up.Templates { // in the order of preference
			i := slices.IndexFunc(status.Learned, func(l v1alpha1.LearnedTemplate) bool { return launch.IsSameTemplate(l.Name, t.Name) })
			if i >= 0 {
				learned = append(learned, status.Learned[i])
			}
		}
	}
	for i := range learned {
		l := &learned[i]
		t := plan.Template{Name: l.Name, Node: plan.NewTemplateNode(g, plan.TemplateSource{Template: cloud.Template{Name: l.Name}, Learned: l})}
		if at := slices.IndexFunc(status.BackOffs, func(b v1alpha1.BackOff) bool { return launch.IsSameTemplate(b.Template, l.Name) }); at >= 0 {
			t.ClosedReason = plan.WhyBackedOff(&status.BackOffs[at], g.Name, now)
		}
		templates = append(templates, t)
	}
	return templates, len(up.Templates) > 0 && len(learned) == len(up.Templates)
}

package plan

import "github.com/slipway-dev/slipway/internal/provisioning/launch"

import "github.com/slipway-dev/slipway/internal/placement"

// Wished is the rule for instances that are launched because of a LaunchRequest.
const Wished = "Wished"

// LaunchRequest is a request for instances that does not come from scale-up, such as from a plugin that has seen a pod.
// It is fulfilled within the limits that apply to every launch.
type LaunchRequest struct {
	// ID identifies the request.
	ID string
	// Group is the name of the NodeGroup.
	Group string
	// Template is the requested template. If it is empty, any template is allowed, in the group's order.
	Template string
	Count    int
	// Pod is the pod that the request is for. If an instance of the group is launched or provisioning for it anyway,
	// that instance counts as requested.
	Pod placement.PodKey
	// Reason is the reason, for people.
	Reason string
}

// LaunchRequestVerdict is the result for one request.
type LaunchRequestVerdict struct {
	ID    string `json:"id"`
	Group string `json:"group"`
	// Launched is how many instances are launched for it now. PodServed means that an instance is launched for its pod
	// anyway. Missing is how many may not be launched now, for the reasons.
	Launched  int      `json:"launched"`
	PodServed bool     `json:"podServed,omitempty"`
	Missing   int      `json:"missing,omitempty"`
	Reasons   []Reason `json:"reasons,omitempty"`
	// LaunchedByTemplate is the number of launched instances, by template.
	LaunchedByTemplate map[string]int `json:"launchedByTemplate,omitempty"`
}

// planRequestedLaunches launches the instances of the launch requests, after the launches for pods.
func (p *scaleUp) planRequestedLaunches() error {
	for _, w := range p.LaunchRequests {
		v, err := p.planLaunchRequest(w)
		if err != nil {
			return err
		}
		p.requestVerdicts = append(p.requestVerdicts, v)
	}
	return nil
}

func (p *scaleUp) planLaunchRequest(w LaunchRequest) (LaunchRequestVerdict, error) {
	v := LaunchRequestVerdict{ID: w.ID, Group: w.Group, Missing: w.Count, PodServed: p.hasInstanceForPod(w)}
	if v.PodServed {
		v.Missing--
	}
	found := false
	for _, k := range p.templates {
		if k.group.name() != w.Group || k.group.scaleUpSpec() == nil || w.Template != "" && !launch.IsSameTemplate(k.Name, w.Template) {
			continue
		}
		found = true
		if v.Missing <= 0 {
			break
		}
		if closed := p.whyTemplateNotLaunchable(k); closed != nil {
			v.Reasons = append(v.Reasons, *closed)
			continue
		}
		if err := p.planLaunchesWithinLimits(k, w, &v); err != nil {
			return v, err
		}
	}
	if !found && v.Missing > 0 {
		v.Reasons = append(v.Reasons, Reason{
			Rule: NoTemplate, Group: w.Group, Template: w.Template, Message: "the group cannot launch such instances: it has no spec.scaleUp, or no such template",
		})
	}
	if v.Missing == 0 {
		v.Reasons = nil
	}
	return v, nil
}

// planLaunchesWithinLimits launches as many instances of one template as the limits allow.
func (p *scaleUp) planLaunchesWithinLimits(k *groupTemplate, w LaunchRequest, v *LaunchRequestVerdict) error {
	n, spent := v.Missing, (*launchLimit)(nil)
	for _, a := range p.allLimits(k.group) {
		if can := a.maxInstances(k); can < n {
			n, spent = can, a
		}
	}
	if err := p.simulateLaunches(k, n); err != nil {
		return err
	}
	if n > 0 {
		p.addLaunch(k, n, nil, Reason{Rule: Wished, Group: k.group.name(), Template: k.Name, Message: w.Reason})
		v.Launched += n
		if v.LaunchedByTemplate == nil {
			v.LaunchedByTemplate = map[string]int{}
		}
		v.LaunchedByTemplate[k.Name] += n
		v.Missing -= n
	}
	if spent != nil {
		v.Reasons = append(v.Reasons, Reason{Rule: spent.Name, Group: k.group.name(), Template: k.Name, Message: spent.message})
	}
	return nil
}

// hasInstanceForPod reports whether an instance of the group is launched for the request's pod anyway.
func (p *scaleUp) hasInstanceForPod(w LaunchRequest) bool {
	for _, v := range p.podVerdicts {
		if v.Pod == w.Pod && (v.Outcome == Launching || v.Outcome == Provisioning) && p.templateByID[p.templateByInstance[v.Node]].group.name() == w.Group {
			return true
		}
	}
	return false
}

package plan

import "github.com/slipway-dev/slipway/internal/provisioning/launch"

import "github.com/slipway-dev/slipway/internal/placement"

// Wished is the rule of machines that are ordered since somebody outside has asked for them.
const Wished = "Wished"

// Wish is for machines that somebody outside asks for, such as a plugin that has seen a pod. It is granted as far as the
// limits allow that hold for every order.
type Wish struct {
	// ID tells it from others.
	ID string
	// Group is the NodeGroup's name.
	Group string
	// Template is the kind that is wanted; empty is any, the group's first if possible.
	Template string
	Count    int
	// Pod is the one on whose behalf it is. A machine of the group that is ordered for it anyway, or on its way for it, is
	// one of those that are wished for.
	Pod placement.PodKey
	// Why is for people.
	Why string
}

// WishVerdict is the word on one wish.
type WishVerdict struct {
	ID    string `json:"id"`
	Group string `json:"group"`
	// Granted is how many machines are ordered for it now, Helped says that one comes for its pod anyway, and Missing is how
	// many may not be ordered now, for the reasons.
	Granted int      `json:"granted"`
	Helped  bool     `json:"helped,omitempty"`
	Missing int      `json:"missing,omitempty"`
	Reasons []Reason `json:"reasons,omitempty"`
	// By is how many of those granted are of each kind.
	By map[string]int `json:"by,omitempty"`
}

// launchRequested orders what is wished for beside what pods need.
func (p *scaleUp) launchRequested() error {
	for _, w := range p.Wishes {
		v, err := p.answerRequest(w)
		if err != nil {
			return err
		}
		p.requestVerdicts = append(p.requestVerdicts, v)
	}
	return nil
}

func (p *scaleUp) answerRequest(w Wish) (WishVerdict, error) {
	v := WishVerdict{ID: w.ID, Group: w.Group, Missing: w.Count, Helped: p.hasInstanceForPod(w)}
	if v.Helped {
		v.Missing--
	}
	found := false
	for _, k := range p.templates {
		if k.group.name() != w.Group || k.group.scaleUpSpec() == nil || w.Template != "" && !launch.SameKind(k.Name, w.Template) {
			continue
		}
		found = true
		if v.Missing <= 0 {
			break
		}
		if closed := p.whyClosed(k); closed != nil {
			v.Reasons = append(v.Reasons, *closed)
			continue
		}
		if err := p.launchForRequest(k, w, &v); err != nil {
			return v, err
		}
	}
	if !found && v.Missing > 0 {
		v.Reasons = append(v.Reasons, Reason{
			Rule: NoTemplate, Group: w.Group, Template: w.Template, Message: "the group gets no such machines: it has no spec.scaleUp, or no such kind",
		})
	}
	if v.Missing == 0 {
		v.Reasons = nil
	}
	return v, nil
}

// launchForRequest orders as many machines of one kind as the limits allow.
func (p *scaleUp) launchForRequest(k *groupTemplate, w Wish, v *WishVerdict) error {
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
		p.addLaunch(k, n, nil, Reason{Rule: Wished, Group: k.group.name(), Template: k.Name, Message: w.Why})
		v.Granted += n
		if v.By == nil {
			v.By = map[string]int{}
		}
		v.By[k.Name] += n
		v.Missing -= n
	}
	if spent != nil {
		v.Reasons = append(v.Reasons, Reason{Rule: spent.Name, Group: k.group.name(), Template: k.Name, Message: spent.message})
	}
	return nil
}

// hasInstanceForPod reports whether a machine of the group comes for the wish's pod anyway.
func (p *scaleUp) hasInstanceForPod(w Wish) bool {
	for _, v := range p.podVerdicts {
		if v.Pod == w.Pod && (v.Outcome == Ordered || v.Outcome == Awaits) && p.templateByFlavour[p.flavourByInstance[v.Node]].group.name() == w.Group {
			return true
		}
	}
	return false
}

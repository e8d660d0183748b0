package placement

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
)

// Judge gives the scheduler's verdict on placing a pod that is not (or no longer) in the snapshot on a node. The pod is
// taken as it is written: with a node name it goes nowhere else.
func (s *Snapshot) Judge(o *corev1.Pod, nodeName string) (Verdict, error) {
	if o == nil {
		return Verdict{}, errors.New("no pod")
	}
	n, err := s.nodeNamed(nodeName)
	if err != nil {
		return Verdict{}, err
	}
	c := s.classOf(o, false)
	v := s.judge(c, n)
	if c.members == 0 {
		s.garbage++
	}
	return v, nil
}

// judge goes through the predicates in the order of the scheduler's default profile and stops, as it does, at the first
// that refuses. A predicate that cannot be decided only counts when none after it refuses.
func (s *Snapshot) judge(c *class, n *node) Verdict {
	if refusal := s.refusal(c); refusal != nil {
		return Verdict{Blocked, []Reason{*refusal}}
	}
	if v := c.filter.on(n); v != admitted {
		return Verdict{Blocked, []Reason{c.filter.reason(v, n)}}
	}
	if !c.portsFree(n) {
		return Verdict{Blocked, []Reason{reasonPorts}}
	}
	if !c.resourcesFit(n) {
		if reasons := s.resourceReasons(c, n); len(reasons) > 0 {
			return Verdict{Blocked, reasons}
		}
	}
	undecided := append(s.deviceReasons(c, n), c.undecidable...)
	if c.volumes != nil {
		refused, open := s.judgeVolumes(c, n)
		if len(refused) > 0 {
			return Verdict{Blocked, refused}
		}
		undecided = append(undecided, open...)
	}
	if r := c.spreadFits(n.id); r != nil {
		return Verdict{Blocked, []Reason{*r}}
	}
	if r := c.podAffinityFits(n.id); r != nil {
		return Verdict{Blocked, []Reason{*r}}
	}
	if !c.featuresDeclared(n) {
		return Verdict{Blocked, []Reason{reasonFeatures}}
	}
	if len(undecided) > 0 {
		return Verdict{Undecidable, undecided}
	}
	return Verdict{Outcome: Fits}
}

// refusal is why no node is even looked at: a property of the pod, or of the claims it names.
func (s *Snapshot) refusal(c *class) *Reason {
	if c.refusal != nil && c.refusal.Predicate == "SchedulingGates" {
		return c.refusal
	}
	if c.filter.conflict {
		return &reasonNameConflict
	}
	if c.volumes != nil {
		if r := c.volumes.resolve(&s.storage).refusal; r != nil {
			return r
		}
	}
	return c.refusal
}

// judgeVolumes asks the four plugins on volumes in order.
func (s *Snapshot) judgeVolumes(c *class, n *node) (refused, undecided []Reason) {
	if r := s.volumeRestrictions(c, n); r != nil {
		return []Reason{*r}, nil
	}
	r, open := s.volumeLimits(c, n)
	if r != nil {
		return []Reason{*r}, nil
	}
	if open != nil {
		undecided = append(undecided, *open)
	}
	refused, open = s.volumeBinding(c, n)
	if len(refused) > 0 {
		return refused, nil
	}
	if open != nil {
		undecided = append(undecided, *open)
	}
	if r := s.volumeZone(c, n); r != nil {
		return []Reason{*r}, nil
	}
	return nil, undecided
}

// fits is judge without reasons: true only when the verdict is Fits. It does not allocate for pods without volumes.
func (s *Snapshot) fits(c *class, n *node) bool {
	if !s.roomy(c, n) || c.spreadFits(n.id) != nil || c.podAffinityFits(n.id) != nil || !c.featuresDeclared(n) {
		return false
	}
	return c.volumes == nil || s.judge(c, n).Outcome == Fits
}

// placeable reports whether a class can fit anywhere at all.
func (s *Snapshot) placeable(c *class) bool { return len(c.undecidable) == 0 && s.refusal(c) == nil }

// roomy asks the predicates that only get worse when a node gains pods: those on the node object, resources and ports.
func (s *Snapshot) roomy(c *class, n *node) bool {
	return !n.out && n.present && c.filter.on(n) == admitted && c.resourcesFit(n) && c.portsFree(n)
}

package placement

// Scatter puts pods where kube-scheduler tends to: each on the least used of the nodes that take it, in the given order
// (https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins, NodeResourcesFit with its default strategy).
// What Evacuate and Pack find is the best that could happen; this is what is likely to. Pods that are on a node already
// leave it first, all of them. It returns the pods that no node takes, and works in a fork only.
func (s *Snapshot) Scatter(pods []PodKey) (left []PodKey, err error) {
	for _, key := range pods { // none of them is in the way of another
		if err := s.Lift(key); err != nil {
			return nil, err
		}
	}
	for _, key := range pods {
		p := s.pods[key]
		var best *node
		var least float64
		for _, n := range s.byName() {
			if !s.target(n) || !s.placeable(p.class) || p.class.volumes.hasEphemeral() || !s.fits(p.class, n) {
				continue
			}
			if load := n.load(); best == nil || load < least {
				best, least = n, load
			}
		}
		if best == nil {
			left = append(left, key)
			continue
		}
		s.put(p, best)
	}
	return left, nil
}

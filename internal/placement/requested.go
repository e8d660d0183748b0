package placement

// Requested is what all pods on a node request together, as kube-scheduler counts it: those of DaemonSets, static ones and
// those on their way out too, since they hold their room until they are gone.
func (s *Snapshot) Requested(nodeName string) (Load, error) {
	n, err := s.nodeNamed(nodeName)
	if err != nil {
		return Load{}, err
	}
	return Load{
		Pods: len(n.pods),
		CPU:  at(n.used, resourceCPU), AllocatableCPU: at(n.allocatable, resourceCPU),
		Memory: at(n.used, resourceMemory), AllocatableMemory: at(n.allocatable, resourceMemory),
	}, nil
}

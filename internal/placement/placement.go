// Package placement answers one question exactly and at once: would these pods run there?
//
// A Snapshot holds what scheduling reads of a cluster: nodes, pods, disruption budgets, bound volumes, namespaces. It is
// fed by events, each in time proportional to the event, and answers without I/O. Its verdict on a pod and a node is
// that of kube-scheduler 1.36 with its default profile and default feature gates, or Undecidable with the reason why it
// cannot be told; it is never guessed. One file holds one predicate, named after the scheduler's plugin.
//
// On top of the verdict stand three questions: Evacuate (where would the pods of a node go), Victims (which nodes may go
// together) and Pack (which new machines would take the pending pods). Each returns the whole trace of its reasons.
//
// Pods with the same scheduling needs form one class and share everything compiled from their specification. Pods that
// match a selector are counted per topology domain, incrementally. A Fork records what is done to the snapshot in an
// undo log, so that a plan can be tried and taken back at the cost of what it touched.
//
// A Snapshot is not safe for concurrent use: feed it and ask it under one lock. The objects handed to it are read, kept
// in part (labels and annotations are not copied), and must not be changed afterwards, as is the rule for informers.
package placement

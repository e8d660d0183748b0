// Package placement answers one question exactly and at once: would these pods run there?
//
// This package has the words of the answers. Package filter judges one pod and one node. Package snapshot holds a cluster.
// Package planner answers for the pods of a node and for several nodes together. Package explain prints the answers.
// Packages saved and live make a snapshot of a file and of a running cluster.
//
// A verdict is that of kube-scheduler 1.37 with its default profile and default feature gates, or Undecidable with the
// reason why it cannot be told; it is never guessed.
package placement

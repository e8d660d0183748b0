// Package placement answers one question without I/O: can these pods be scheduled on that node?
//
// This package defines the vocabulary of the answers: outcomes, reasons and verdicts.
//
// - Package filter evaluates one pod against one node.
// - Package snapshot holds the state of a cluster.
// - Package planner plans for the pods of one node, and for several nodes together.
// - Package explain prints the answers.
// - Packages saved and live build a snapshot from a file and from a running cluster.
//
// A verdict equals the verdict of kube-scheduler 1.37 with its default profile and default feature gates. If it
// cannot be decided, the outcome is Undecidable with a reason. No verdict is a guess.
package placement

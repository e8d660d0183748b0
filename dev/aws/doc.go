// Package aws emulates the parts of AWS that the agent uses: the metadata service of EC2 instances (IMDSv2), and the
// actions of the Auto Scaling API for lifecycle hooks. Both are HTTP servers on the loopback interface.
//
// The metadata service follows the Amazon EC2 user guide: session tokens, statuses, and the form of each document. Faults
// can be set for each path. The Auto Scaling API checks the signature of each request.
package aws

// Package aws emulates the parts of AWS that Slipway uses: the metadata service of EC2 instances (IMDSv2), and the APIs of
// SQS, EC2 and Auto Scaling. They are HTTP servers on the loopback interface, or handlers in the same process.
//
// The metadata service follows the Amazon EC2 user guide: session tokens, statuses, and the form of each document. The APIs
// speak the protocols of the AWS SDK, and check the signature of each request. [Cloud] serves all three APIs. Faults can be
// set for each path, and for each API.
//
// SQS is emulated here because github.com/Admiral-Piett/goaws v0.4.4 serves only the Query protocol with XML. The SDK
// speaks JSON. It also has no ChangeMessageVisibilityBatch, and ends visibility timeouts by a periodic task.
package aws

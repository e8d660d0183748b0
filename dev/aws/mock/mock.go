//go:build mock

// Package mock names the version of AWS's own emulator of the metadata service for the tests. It is a module of its own, so
// that its dependencies are in no other module.
package mock

import _ "github.com/aws/amazon-ec2-metadata-mock/pkg/cmd/root"

// Package externalgrpcv1 is the part of the external gRPC cloud provider protocol of the cluster autoscaler that Slipway
// uses. externalgrpc.proto describes it. Its code is generated together with the code of package plugin/v1.
package externalgrpcv1

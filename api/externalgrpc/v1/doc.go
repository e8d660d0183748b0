// Package externalgrpcv1 is the cluster autoscaler's external gRPC cloud provider protocol, as far as Slipway speaks it;
// externalgrpc.proto describes it. Its code is generated together with that of the plugins' own protocol.
package externalgrpcv1

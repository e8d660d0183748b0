// Package dev is the root of the development module. The module has the real control plane, the emulated clouds, the
// demo, the end-to-end tests and the benchmarks. It is separate, so that the product never depends on
// k8s.io/kubernetes.
package dev

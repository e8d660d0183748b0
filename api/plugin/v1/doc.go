// Package pluginv1 is the protocol between Slipway and its plugins, version 1, as gRPC code; plugin.proto describes it.
// A plugin that is written in Go needs none of it: see the package plugin at the module's root.
package pluginv1

//go:generate sh -c "cd ../.. && go tool -modfile=../tools/proto/go.mod buf generate"

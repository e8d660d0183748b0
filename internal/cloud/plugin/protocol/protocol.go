// Package protocol has what Slipway and its plugins must agree on before the first call.
package protocol

import (
	goplugin "github.com/hashicorp/go-plugin"
)

// Version is the version of the plugin protocol. It changes with each incompatible change.
const Version = 1

// Name is the name of the services in go-plugin.
const Name = "slipway"

// Handshake identifies Slipway and its plugins to each other. The cookie prevents mistakes; it is not a security
// measure.
func Handshake() goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{
		ProtocolVersion:  Version,
		MagicCookieKey:   "SLIPWAY_PLUGIN",
		MagicCookieValue: "e9d4a0b6-97d1-4f1a-8c39-5f0b7d7a2c64",
	}
}

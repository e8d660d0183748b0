// Package protocol defines the values that Slipway and its plugins must share before the first call.
package protocol

import (
	goplugin "github.com/hashicorp/go-plugin"
)

// Version is the version of the plugin protocol. Each incompatible change increases it.
const Version = 1

// Name is the name under which go-plugin registers the services of a plugin.
const Name = "slipway"

// Handshake returns the values that Slipway and a plugin check before the first call. The cookie prevents mistakes. It
// is not a security measure.
func Handshake() goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{
		ProtocolVersion:  Version,
		MagicCookieKey:   "SLIPWAY_PLUGIN",
		MagicCookieValue: "e9d4a0b6-97d1-4f1a-8c39-5f0b7d7a2c64",
	}
}

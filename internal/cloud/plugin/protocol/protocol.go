// Package protocol is what Slipway and its plugins have to agree on before they speak.
package protocol

import (
	goplugin "github.com/hashicorp/go-plugin"
)

// Version is that of the plugin protocol. It changes when a plugin of the version before could not be understood.
const Version = 1

// Name is what the services are called among go-plugin's.
const Name = "slipway"

// Handshake tells a plugin that it was started by Slipway, and Slipway that it has started a plugin. The cookie guards
// against mistakes, not against malice.
func Handshake() goplugin.HandshakeConfig {
	return goplugin.HandshakeConfig{
		ProtocolVersion:  Version,
		MagicCookieKey:   "SLIPWAY_PLUGIN",
		MagicCookieValue: "e9d4a0b6-97d1-4f1a-8c39-5f0b7d7a2c64",
	}
}

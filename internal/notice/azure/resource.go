// Package azure reads notices from the Scheduled Events of the Azure instance metadata service (IMDS).
//
// Facts about the service are from Microsoft's page "Azure Metadata Service: Scheduled Events" (api-version
// 2020-07-01). One document lists the events of every machine of a scale set or placement group, so that an event
// concerns this machine only when its Resources name this machine exactly.
//
// The package is linked into the node agent and is kept to the standard library for its memory's sake.
package azure

import (
	"fmt"
	"strings"

	"github.com/slipway-dev/slipway/internal/cloud/azure/providerid"
)

// Name is this source's name, found in [notice.Notice.Source].
const Name = "azure"

// ResourceName works out from a node's spec.providerID by which name Scheduled Events call its machine: V_I for
// instance I of the uniform scale set V; N for the machine N that stands alone or in a flexible scale set. Fixed
// segments are accepted in any letter case, as the Azure API writes them in several.
//
// It is an error, never a guess, when the provider ID is empty, malformed or of another cloud.
func ResourceName(providerID string) (string, error) {
	id, err := providerid.Parse(providerID)
	if err != nil {
		return "", fmt.Errorf("node spec.providerID: %w", err)
	}
	return id.Resource(), nil
}

// SameResource reports whether two resource names mean one machine: equal as a whole, letter case aside.
func SameResource(a, b string) bool { return strings.EqualFold(a, b) }

// Package azure reads notices from the Scheduled Events of the Azure instance metadata service (IMDS).
//
// Facts about the service are from Microsoft's page "Azure Metadata Service: Scheduled Events" (api-version
// 2020-07-01). One document lists the events of every machine of a scale set or placement group, so that an event
// concerns this machine only when its Resources name this machine exactly.
//
// The package is linked into the node agent and is kept to the standard library for its memory's sake.
package azure

import "strings"

// Name is this source's name, found in [notice.Notice.Source].
const Name = "azure"

// SameResource reports whether two resource names mean one machine: equal as a whole, letter case aside.
func SameResource(a, b string) bool { return strings.EqualFold(a, b) }

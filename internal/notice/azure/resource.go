// Package azure reads notices from the Scheduled Events of the Azure instance metadata service (IMDS).
//
// Facts about the service are from Microsoft's page "Azure Metadata Service: Scheduled Events" (api-version
// 2020-07-01). One document lists the events of all instances in a scale set or placement group. So an event concerns
// this instance only if its Resources name it exactly.
//
// The package is linked into the node agent. It uses only the standard library, to save memory.
package azure

import "strings"

// SourceName is the value of [notice.Notice.Source] in the notices of this package.
const SourceName = "azure"

// IsSameResource reports whether two resource names are equal, ignoring case.
func IsSameResource(a, b string) bool { return strings.EqualFold(a, b) }

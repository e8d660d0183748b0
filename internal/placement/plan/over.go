package plan

import (
	"github.com/slipway-dev/slipway/internal/placement"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// Over is a cluster whose snapshot somebody keeps current; the objects are its nodes and pods. It holds for as long as
// neither changes.
func Over(s *placement.Snapshot, o *saved.Objects) *Cluster {
	return &Cluster{snapshot: s, flavours: Flavours(o), pending: waiting(o.Pods)}
}

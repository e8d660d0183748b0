package cloud

import (
	"context"
	"strings"
)

// Right is one that a credential needs, and on what.
type Right struct {
	// Name is what the cloud calls it, such as Microsoft.Compute/virtualMachineScaleSets/delete/action.
	Name string
	// Scope is what it is needed on, such as a resource's ID.
	Scope string
}

func (r Right) String() string { return r.Name + " on " + r.Scope }

// Rights are several of them.
type Rights []Right

func (r Rights) String() string {
	all := make([]string, 0, len(r))
	for _, right := range r {
		all = append(all, right.String())
	}
	return strings.Join(all, ", ")
}

// GroupRights are those that a credential lacks for a group.
type GroupRights struct {
	// ToDelete are for reading the group and its machines, and for deleting them.
	ToDelete Rights
	// ToGrow are for [Provider.Grow] beyond those.
	ToGrow Rights
}

// RightsChecker is a [Provider] that can tell beforehand which rights its credential lacks, so that nothing is begun that
// would be refused half-way.
//
// An error means that it could not be found out, which is no reason to refuse anything (I7): the cloud has the last word
// when it is asked for the thing itself, and may refuse for a reason that no list of rights shows. What is answered may be
// some minutes old. The methods may be called concurrently.
type RightsChecker interface {
	// MissingForGroup lists what is missing for the use of a group.
	MissingForGroup(ctx context.Context, group string) (GroupRights, error)
	// MissingToDelete lists what is missing for the deletion of one machine, and for following it to its end.
	MissingToDelete(ctx context.Context, providerID string) (Rights, error)
}

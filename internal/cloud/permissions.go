package cloud

import (
	"context"
	"strings"
)

// Permission is a permission that a credential needs, and the scope for which the credential needs it.
type Permission struct {
	// Name is the cloud's name, such as Microsoft.Compute/virtualMachineScaleSets/delete/action.
	Name string
	// Scope is the resource that the permission applies to, such as a resource ID.
	Scope string
}

func (r Permission) String() string { return r.Name + " on " + r.Scope }

// Permissions is a list of permissions.
type Permissions []Permission

func (r Permissions) String() string {
	all := make([]string, 0, len(r))
	for _, right := range r {
		all = append(all, right.String())
	}
	return strings.Join(all, ", ")
}

// GroupPermissions lists the permissions that a credential lacks for a group.
type GroupPermissions struct {
	// ToDelete are missing to read the group and its instances, and to delete them.
	ToDelete Permissions
	// ToGrow are missing for [Provider.Grow], in addition to ToDelete.
	ToGrow Permissions
}

// PermissionChecker is a [Provider] that can check the permissions of its credential before a request. So an operation
// does not stop halfway.
//
// An error means that the check was not possible. The caller must not refuse the operation because of this error:
// unknown does not mean missing (I7). The result can be a few minutes old. The cloud can still refuse a request for
// reasons other than permissions. The methods are safe for concurrent use.
type PermissionChecker interface {
	// MissingGroupPermissions lists the missing permissions for a group.
	MissingGroupPermissions(ctx context.Context, group string) (GroupPermissions, error)
	// MissingDeletePermissions lists the missing permissions to delete one instance and to follow the deletion.
	MissingDeletePermissions(ctx context.Context, providerID string) (Permissions, error)
}

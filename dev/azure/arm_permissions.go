package azure

import (
	"net/http"
	"slices"
	"strings"
)

const (
	authorizationNamespace = "Microsoft.Authorization"
	permissionsSuffix      = "/providers/" + authorizationNamespace + "/permissions"
	permissionsRead        = authorizationNamespace + "/permissions/read"
)

// permissionRoutes returns the routes of the permissions on a resource group, and on existing resources in it.
func (a *ARM) permissionRoutes(group, set, vm, pool string) []route {
	on := func(scope string, exists func(*http.Request) *armError) route {
		return route{"GET " + scope + permissionsSuffix, permissionsRead, func(r *http.Request) (armAnswer, *armError) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if err := exists(r); err != nil {
				return armAnswer{}, err
			}
			return a.permissionsLocked(r), nil
		}}
	}
	return []route{
		on(group, func(*http.Request) *armError { return nil }), // admit has checked the group
		on(set, func(r *http.Request) *armError { _, err := a.setOf(r); return err }),
		on(vm, func(r *http.Request) *armError { _, err := a.oneVM(r); return err }),
		on(pool, func(r *http.Request) *armError { _, err := a.poolOf(r); return err }),
	}
}

// permissionsLocked lists the permissions on a scope, as two roles. Neither includes an action that the first matching
// fault would deny.
func (a *ARM) permissionsLocked(r *http.Request) armAnswer {
	scope := strings.TrimSuffix(r.URL.Path, permissionsSuffix)
	denied := a.deniedLocked(scope)
	entry := func(action string) any {
		return map[string]any{"actions": []string{action}, "notActions": denied, "dataActions": []string{}, "notDataActions": []string{}}
	}
	roles := []string{"*", "*/read"}
	return page(a, r, roles, func(role string) string { return role }, entry)
}

// deniedLocked lists the actions that are denied below a scope, without using up a fault.
func (a *ARM) deniedLocked(scope string) []string {
	a.dropOverLocked()
	denied := []string{}
	for _, route := range a.routes() {
		i := slices.IndexFunc(a.faults, func(f *armedARMFault) bool { return !f.ofDeletion() && f.concerns(route.action, scope) })
		if i >= 0 && a.faults[i].Kind == ARMDenied && !slices.Contains(denied, route.action) {
			denied = append(denied, route.action)
		}
	}
	return denied
}

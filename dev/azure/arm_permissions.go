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
		return route{"GET " + scope + permissionsSuffix, permissionsRead, func(r *http.Request) (armResponse, *armError) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if err := exists(r); err != nil {
				return armResponse{}, err
			}
			return a.permissionsPageLocked(r), nil
		}}
	}
	return []route{
		on(group, func(*http.Request) *armError { return nil }), // admit has checked the group
		on(set, func(r *http.Request) *armError { _, err := a.findRequestedScaleSetLocked(r); return err }),
		on(vm, func(r *http.Request) *armError { _, err := a.findRequestedVMLocked(r); return err }),
		on(pool, func(r *http.Request) *armError { _, err := a.findRequestedPoolLocked(r); return err }),
	}
}

// permissionsPageLocked lists the permissions on a scope, as two roles. Neither includes an action that the first matching
// fault would deny.
func (a *ARM) permissionsPageLocked(r *http.Request) armResponse {
	scope := strings.TrimSuffix(r.URL.Path, permissionsSuffix)
	denied := a.deniedActionsLocked(scope)
	entry := func(action string) any {
		return map[string]any{"actions": []string{action}, "notActions": denied, "dataActions": []string{}, "notDataActions": []string{}}
	}
	roles := []string{"*", "*/read"}
	return newPage(a, r, roles, func(role string) string { return role }, entry)
}

// deniedActionsLocked lists the actions that are denied below a scope, without using up a fault.
func (a *ARM) deniedActionsLocked(scope string) []string {
	a.dropExpiredFaultsLocked()
	denied := []string{}
	for _, route := range a.routes() {
		i := slices.IndexFunc(a.faults, func(f *armedARMFault) bool { return !f.isDeletionFault() && f.matchesRequest(route.action, scope) })
		if i >= 0 && a.faults[i].Kind == ARMDenied && !slices.Contains(denied, route.action) {
			denied = append(denied, route.action)
		}
	}
	return denied
}

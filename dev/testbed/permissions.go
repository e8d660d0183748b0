package testbed

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CopyRoleAndBinding copies a Role and the RoleBinding of its name to another namespace.
func (t *Testbed) CopyRoleAndBinding(ctx context.Context, namespace, name, to string) error {
	rbac := t.Client().RbacV1()
	role, err := rbac.Roles(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	binding, err := rbac.RoleBindings(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	role.ObjectMeta, binding.ObjectMeta = metav1.ObjectMeta{Name: name}, metav1.ObjectMeta{Name: name}
	_, err = rbac.Roles(to).Create(ctx, role, metav1.CreateOptions{})
	if err == nil {
		_, err = rbac.RoleBindings(to).Create(ctx, binding, metav1.CreateOptions{})
	}
	return err
}

// AwaitPermissions waits until a ServiceAccount has the permissions of a ClusterRole that it was bound to. The API server's
// authorizer reads roles and bindings from a cache, which is updated a moment later.
func (t *Testbed) AwaitPermissions(ctx context.Context, namespace, account, clusterRole string) error {
	role, err := t.Client().RbacV1().ClusterRoles().Get(ctx, clusterRole, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, rule := range role.Rules {
		if len(rule.Resources) == 0 {
			continue
		}
		// All rules of a role appear together.
		permission := &authorizationv1.ResourceAttributes{Verb: rule.Verbs[0], Group: rule.APIGroups[0]}
		permission.Resource, permission.Subresource, _ = strings.Cut(rule.Resources[0], "/")
		if len(rule.ResourceNames) > 0 {
			permission.Name = rule.ResourceNames[0]
		}
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + namespace + ":" + account, ResourceAttributes: permission,
		}}
		return PollUntil(ctx, fmt.Sprintf("ServiceAccount %s/%s has the permissions of ClusterRole %s", namespace, account, clusterRole), func() bool {
			answer, err := t.Client().AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			return err == nil && answer.Status.Allowed
		})
	}
	return nil
}

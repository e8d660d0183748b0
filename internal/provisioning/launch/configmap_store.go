package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// ConfigMapPrefix is the prefix of the ConfigMaps with the launches of groups of a file. The group's name follows.
const ConfigMapPrefix = "slipway-launches-"

// configMapKey is the key in the ConfigMap's data. Its value is JSON.
const configMapKey = "provisioning"

// configMapStore stores the launches of groups of a file, in one ConfigMap per group. Its resourceVersion is the lock.
type configMapStore struct {
	reader    client.Reader
	writer    client.Writer
	namespace string

	mu         sync.Mutex
	lastStatus map[string]*v1alpha1.ProvisioningStatus // by group, as this process has read or written it last
}

// UseConfigMaps stores the launches of groups of a file in ConfigMaps of the namespace.
func (r *Record) UseConfigMaps(w client.Writer, namespace string) *Record {
	r.configMaps.writer, r.configMaps.namespace = w, namespace
	return r
}

// readConfigMap reads a group's ConfigMap. If the ConfigMap does not exist, it returns a new one without
// resourceVersion. If the ConfigMap cannot be parsed, it returns an error, because the ConfigMap may contain launches
// (invariant I7: unknown is not gone).
func (f *configMapStore) readConfigMap(ctx context.Context, group string) (configMap *corev1.ConfigMap, status *v1alpha1.ProvisioningStatus, err error) {
	if f.writer == nil {
		return nil, nil, fmt.Errorf("NodeGroup %s is defined in a file, and this process has no namespace for its launch record: create the NodeGroup as an object", group)
	}
	configMap, status = &corev1.ConfigMap{}, &v1alpha1.ProvisioningStatus{}
	name := ConfigMapPrefix + group
	err = f.reader.Get(ctx, client.ObjectKey{Namespace: f.namespace, Name: name}, configMap)
	switch {
	case apierrors.IsNotFound(err):
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name}}, status, nil
	case err != nil:
		return nil, nil, fmt.Errorf("ConfigMap %s/%s with the launches of NodeGroup %s: %w", f.namespace, name, group, err)
	}
	if err := json.Unmarshal([]byte(configMap.Data[configMapKey]), status); err != nil {
		return nil, nil, fmt.Errorf("ConfigMap %s/%s with the launches of NodeGroup %s: data.%s: %w: restore what Slipway has written, or delete the ConfigMap",
			f.namespace, name, group, configMapKey, err)
	}
	return configMap, status, nil
}

func (f *configMapStore) readCached(ctx context.Context, group string) (*v1alpha1.ProvisioningStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if is := f.lastStatus[group]; is != nil {
		return is.DeepCopy(), nil
	}
	_, status, err := f.readConfigMap(ctx, group)
	if err == nil {
		f.lastStatus[group] = status.DeepCopy()
	}
	return status, err
}

func (f *configMapStore) update(ctx context.Context, group string, update func(*v1alpha1.ProvisioningStatus) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	written := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) } // by another process
	return retry.OnError(retry.DefaultBackoff, written, func() error {
		m, status, err := f.readConfigMap(ctx, group)
		if err != nil {
			return err
		}
		before := status.DeepCopy()
		if err := update(status); err != nil {
			return err
		}
		if m.ResourceVersion == "" || !equality.Semantic.DeepEqual(before, status) {
			if err := f.createOrUpdateConfigMap(ctx, m, status); err != nil {
				return fmt.Errorf("ConfigMap %s/%s with the launches of NodeGroup %s: %w", m.Namespace, m.Name, group, err)
			}
		}
		f.lastStatus[group] = status.DeepCopy()
		return nil
	})
}

func (f *configMapStore) createOrUpdateConfigMap(ctx context.Context, m *corev1.ConfigMap, status *v1alpha1.ProvisioningStatus) error {
	raw, err := json.Marshal(status)
	if err != nil {
		return err
	}
	m.Data = map[string]string{configMapKey: string(raw)}
	if m.ResourceVersion == "" {
		return f.writer.Create(ctx, m)
	}
	return f.writer.Update(ctx, m)
}

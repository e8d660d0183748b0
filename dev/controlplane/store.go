package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// objectsPerTransaction is the number of objects per transaction. etcd allows 128 operations and 1.5 MiB.
	objectsPerTransaction = 64
	// concurrentTransactions keeps etcd busy while more objects are encoded.
	concurrentTransactions = 4
	etcdTimeout            = time.Minute
)

// WriteToEtcd writes Nodes and Pods directly into etcd, which is much faster than creating them with the API server.
// The API server and all watches see them. No admission, defaulting or validation happens, so the objects must be
// complete. WriteToEtcd sets missing UIDs and creation times. It fails if an object exists, or if another process
// started the cluster.
func (c *Cluster) WriteToEtcd(ctx context.Context, objects iter.Seq[client.Object]) error {
	etcd, err := c.newEtcdClient()
	if err != nil {
		return err
	}
	defer func() { _ = etcd.Close() }()
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(concurrentTransactions)
	for some := range splitIntoChunks(objects, objectsPerTransaction) {
		if each.Err() != nil {
			break
		}
		group.Go(func() error { return createObjectsAtomically(each, etcd, some) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("storing objects: %w", err)
	}
	return ctx.Err()
}

func splitIntoChunks[T any](all iter.Seq[T], size int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		var chunk []T
		for one := range all {
			if chunk = append(chunk, one); len(chunk) == size {
				if !yield(chunk) {
					return
				}
				chunk = nil
			}
		}
		if len(chunk) > 0 {
			yield(chunk)
		}
	}
}

func createObjectsAtomically(ctx context.Context, etcd *clientv3.Client, objects []client.Object) error {
	var absent []clientv3.Cmp
	var puts []clientv3.Op
	for _, o := range objects {
		key, err := etcdKey(o)
		if err != nil {
			return err
		}
		value, err := fillAndEncodeForEtcd(o)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		absent = append(absent, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
		puts = append(puts, clientv3.OpPut(key, string(value)))
	}
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	done, err := etcd.Txn(ctx).If(absent...).Then(puts...).Commit()
	if err != nil {
		return err
	}
	if !done.Succeeded {
		return fmt.Errorf("one of %d objects exists already; the first is %s", len(objects), objects[0].GetName())
	}
	return nil
}

// etcdKey returns the key under which the API server stores an object in etcd. The keys are defined in
// k8s.io/kubernetes, pkg/registry/core.
func etcdKey(o client.Object) (string, error) {
	switch o.(type) {
	case *corev1.Node:
		return "/registry/minions/" + o.GetName(), nil
	case *corev1.Pod:
		return "/registry/pods/" + o.GetNamespace() + "/" + o.GetName(), nil
	}
	return "", fmt.Errorf("%s %s: only Nodes and Pods can be stored", reflect.TypeOf(o), o.GetName())
}

// etcdEncoder encodes objects as the API server stores them in etcd. It may be used concurrently.
var etcdEncoder = scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), corev1.SchemeGroupVersion)

func fillAndEncodeForEtcd(o client.Object) ([]byte, error) {
	if o.GetUID() == "" {
		o.SetUID(uuid.NewUUID())
	}
	if made := o.GetCreationTimestamp(); made.IsZero() {
		o.SetCreationTimestamp(metav1.Now())
	}
	o.SetResourceVersion("") // etcd's key revision replaces it
	return runtime.Encode(etcdEncoder, o)
}

func (c *Cluster) newEtcdClient() (*clientv3.Client, error) {
	if c.etcdURL == "" {
		return nil, errors.New("storing objects: this process has not started the cluster's etcd")
	}
	pki := filepath.Join(c.dir, pkiDir)
	certificate, err := tls.LoadX509KeyPair(filepath.Join(pki, "server.crt"), filepath.Join(pki, "server.key"))
	if err != nil {
		return nil, fmt.Errorf("etcd's certificate: %w", err)
	}
	authority, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("etcd's authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("etcd's authority: %s has no certificate", filepath.Join(pki, "ca.crt"))
	}
	return clientv3.New(clientv3.Config{
		Endpoints: []string{c.etcdURL}, DialTimeout: etcdTimeout,
		TLS: &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: roots, MinVersion: tls.VersionTLS12},
	})
}

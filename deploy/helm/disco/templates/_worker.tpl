{{/* The template of a worker's pod, of any of their kinds. */}}
{{- define "disco.workerPod" }}
{{- $name := printf "%s-worker" (include "disco.fullname" .) }}
{{- $config := dict "checksum/config" (include (print $.Template.BasePath "/config.yaml") . | sha256sum) }}
metadata: {{- include "disco.podMetadata" (list . "worker" .Values.workers dict $config) | nindent 2 }}
spec:
  {{- include "disco.pod" (list . "worker") | nindent 2 }}
  {{- with include "disco.scheduling" .Values.workers | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  # The pause container collects what ranks' own children leave behind.
  shareProcessNamespace: true
  terminationGracePeriodSeconds: {{ add .Values.workers.drainSeconds 30 }}
  containers:
    - name: worker
      image: {{ include "disco.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [disco-worker, --config, /etc/disco/config/disco.toml]
      {{- if ne .Values.workers.kind "Deployment" }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        # By its name, which stands in the certificate, clients bring arrays straight here.
        - name: DISCO_ARRAY_LISTEN
          value: $(POD_NAME).{{ include "disco.workerDomain" . }}:7602
        {{- include "disco.env" .Values.workers.env | trim | nindent 8 }}
      {{- else }}
      # Its pods have no names to be dialled by, so arrays of clients go through the controller.
      {{- with include "disco.env" .Values.workers.env | trim }}
      env: {{- . | nindent 8 }}
      {{- end }}
      {{- end }}
      ports:
        - {name: http, containerPort: 7601}
        - {name: arrays, containerPort: 7602}
      {{- include "disco.probes" . | nindent 6 }}
      lifecycle: {{- include "disco.preStop" (list . .Values.workers.drainSeconds "cordon") | nindent 8 }}
      resources:
        {{- $gpus := dict }}
        {{- with .Values.workers }}
        {{- if .gpus }}{{ $_ := set $gpus .gpuResource .gpus }}{{ end }}
        {{- range $key := list "requests" "limits" }}
        {{ $key }}: {{- merge (dict) $gpus (index $.Values.workers.resources $key | default dict) | toYaml | nindent 10 }}
        {{- end }}
        {{- end }}
      securityContext: {{- include "disco.confined" .Values.workers.capabilities | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/disco/config, readOnly: true}
        {{- if not .Values.insecure }}
        - {name: tls, mountPath: /etc/disco/tls, readOnly: true}
        - {name: tokens, mountPath: /etc/disco/tokens, readOnly: true}
        {{- end }}
        - {name: shared-memory, mountPath: /dev/shm}
        - {name: work, mountPath: /var/lib/disco}
        - {name: tmp, mountPath: /tmp}
        {{- with .Values.workers.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ $name }}}
    {{- if not .Values.insecure }}
    {{- include "disco.secrets" (list . "worker" "worker") | nindent 4 }}
    {{- end }}
    - name: shared-memory
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.workers.sharedMemory }}}
    - name: work
      emptyDir: {sizeLimit: {{ .Values.workers.workSpace }}}
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    {{- with .Values.workers.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

# Serve models over HTTP with the NumPy runtime, without PyTorch:
#   docker build --tag gumbeltree .
#   docker run --rm --publish 8000:8000 --env GUMBELTREE_TOKEN gumbeltree

FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/gumbeltree
RUN /opt/gumbeltree/bin/pip install --no-cache-dir --constraint constraints.txt '.[web]' \
 && /opt/gumbeltree/bin/pip uninstall --yes pip

FROM python:3.12-slim
COPY --from=build /opt/gumbeltree /opt/gumbeltree
ENV PATH=/opt/gumbeltree/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1
# model folders are named relative to this folder, which is meant for a volume
WORKDIR /models
USER 1000:1000
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/api/health', timeout=4)"]
ENTRYPOINT ["gumbeltree"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
